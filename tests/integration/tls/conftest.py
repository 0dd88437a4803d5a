"""The certificates, once a session."""

from __future__ import annotations

import pytest

from tests.integration.tls.certificates import Certificates, make


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))
