"""Certificates that the suite makes for itself: right ones, and one of each kind that must be refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

NAME = "localhost"
"""The host name that servers have a certificate for."""
WRONG_NAME = "127.0.0.1"
"""The same machine, by a name that the certificate `server` does not have."""


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files. Servers and clients are signed by `ca`, whose name nothing but this suite trusts."""

    ca: Path
    wrong_ca: Path
    server: Pair
    expired: Pair
    """A server's, for both names, that ended yesterday."""
    client: Pair
    stranger: Pair
    """A client's that `wrong_ca` signed."""


def make(folder: Path) -> Certificates:
    ca, wrong_ca = trustme.CA(organization_name="Right"), trustme.CA(organization_name="Wrong")
    ca.cert_pem.write_to_path(folder / "ca.pem")
    wrong_ca.cert_pem.write_to_path(folder / "wrong_ca.pem")
    yesterday = datetime.now(UTC) - timedelta(days=1)
    ended = ca.issue_cert(NAME, WRONG_NAME, not_before=yesterday - timedelta(days=1), not_after=yesterday)
    return Certificates(
        ca=folder / "ca.pem",
        wrong_ca=folder / "wrong_ca.pem",
        server=_write(folder, "server", ca.issue_cert(NAME)),
        expired=_write(folder, "expired", ended),
        client=_write(folder, "client", ca.issue_cert("relay@localhost", common_name="relay")),
        stranger=_write(folder, "stranger", wrong_ca.issue_cert("relay@localhost", common_name="relay")),
    )


def _write(folder: Path, name: str, made: trustme.LeafCert) -> Pair:
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    pair.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    # As PKCS#8, which Kafka insists on.
    key = load_pem_private_key(made.private_key_pem.bytes(), None)
    pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    pair.key.chmod(0o600)
    return pair
