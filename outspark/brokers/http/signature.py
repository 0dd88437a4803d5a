"""Signs webhooks as the Standard Webhooks specification says, so that receivers can verify them with its libraries.

`webhook-signature: v1,<base64 of HMAC-SHA256 over "{id}.{unix time}.{body}">`, with the id and the time in
`webhook-id` and `webhook-timestamp`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

_PREFIX = "whsec_"

NAMES: Final = ("webhook-id", "webhook-timestamp", "webhook-signature")


class Signer:
    """The key is the base64 text after `whsec_`, or the bytes of any other secret; ValueError if it is invalid."""

    def __init__(self, secret: str) -> None:
        if not secret:
            raise ValueError("must not be empty")
        self._key = _decoded(secret.removeprefix(_PREFIX)) if secret.startswith(_PREFIX) else secret.encode()

    def headers(self, id: str, body: bytes, now: int) -> list[tuple[bytes, bytes]]:
        """`now` is Unix time. Each try is signed again, because receivers refuse old signatures."""
        signed = b"%b.%d.%b" % (id.encode(), now, body)
        digest = hmac.digest(self._key, signed, hashlib.sha256)
        values = (id.encode(), b"%d" % now, b"v1," + base64.b64encode(digest))
        return [(name.encode(), value) for name, value in zip(NAMES, values, strict=True)]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"the text after {_PREFIX} must be base64") from None
