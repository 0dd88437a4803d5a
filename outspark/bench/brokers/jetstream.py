"""The bench's own word with JetStream, in NATS' text protocol: make a stream, count what it holds."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

from outspark.bench.backlog import EVENT_TYPE
from outspark.errors import OutsparkError

STREAM = "BENCH"


def create_stream(url: str) -> None:
    """On disk, and otherwise as the server has it by default."""
    _ask(url, f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": [EVENT_TYPE], "storage": "file"})


def count(url: str) -> int:
    return int(_ask(url, f"STREAM.INFO.{STREAM}", None)["state"]["messages"])


def _ask(url: str, api: str, body: dict[str, Any] | None) -> dict[str, Any]:
    address = urlsplit(url)
    question = b"" if body is None else json.dumps(body).encode()
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        with connection.makefile("rwb") as stream:
            stream.readline()
            stream.write(b'CONNECT {"verbose": false}\r\nSUB bench.answer 1\r\n')
            stream.write(f"PUB $JS.API.{api} bench.answer {len(question)}\r\n".encode() + question + b"\r\n")
            stream.flush()
            while not (line := stream.readline()).startswith(b"MSG "):
                if not line or line.startswith(b"-ERR"):
                    raise OutsparkError(f"JetStream did not answer {api}: {line.decode().strip()}")
            answer: dict[str, Any] = json.loads(stream.read(int(line.split()[-1])))
    if "error" in answer:
        raise OutsparkError(f"JetStream refused {api}: {answer['error']['description']}")
    return answer
