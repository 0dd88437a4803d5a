"""A Kafka broker with TLS: one listener that asks for a client's certificate and a password, one that has expired."""

from __future__ import annotations

from pathlib import Path

from outspark.tools.servers.kafka import Kafka
from outspark.tools.servers.server import free_port
from tests.integration.tls.certificates import NAME, Certificates, Pair
from tests.integration.tls.passwords import EVERY
from tests.integration.tls.recorder import HOST
from tests.integration.tls.refusals import PASSWORD

TOPIC = "order.created"


class TlsKafka(Kafka):
    def __init__(self, certificates: Certificates) -> None:
        super().__init__(users={"relay": PASSWORD, "odd": EVERY}, quick=True)
        self.tls_port, self.expired_port = free_port(), free_port()
        self._certificates = certificates

    def tls_url(self, host: str = NAME) -> str:
        return f"kafka://{host}:{self.tls_port}"

    @property
    def expired_url(self) -> str:
        return f"kafka://{NAME}:{self.expired_port}"

    def _config(self, folder: Path, port: int) -> dict[str, str]:
        config = super()._config(folder, port)
        ports = {"STRICT": self.tls_port, "EXPIRED": self.expired_port}
        # Clients must find them again by the name that the certificates have.
        named = ",".join(f"{listener}://{NAME}:{number}" for listener, number in ports.items())
        here = ",".join(f"{listener}://{HOST}:{number}" for listener, number in ports.items())
        config["listeners"] += f",{here}"
        config["advertised.listeners"] += f",{named}"
        config["listener.security.protocol.map"] += ",STRICT:SASL_SSL,EXPIRED:SSL"
        # A backslash is an escape in Java's properties as well as in this one.
        login = config["listener.name.sasl.plain.sasl.jaas.config"].replace("\\", "\\\\")
        config["listener.name.sasl.plain.sasl.jaas.config"] = login
        return {
            **config,
            "listener.name.strict.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.strict.plain.sasl.jaas.config": login,
            "listener.name.strict.ssl.client.auth": "required",
            **self._files(folder, "strict", self._certificates.server),
            **self._files(folder, "expired", self._certificates.expired),
        }

    def _files(self, folder: Path, listener: str, pair: Pair) -> dict[str, str]:
        store = folder / f"{listener}.pem"
        store.touch(mode=0o600)
        store.write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
        files = {
            "keystore.type": "PEM",
            "keystore.location": str(store),
            "truststore.type": "PEM",
            "truststore.location": str(self._certificates.ca),
        }
        return {f"listener.name.{listener}.ssl.{name}": value for name, value in files.items()}


def login(certificates: Certificates, **more: str) -> dict[str, str]:
    """The right options for the listener that asks for all; those of `more` win, an empty one is left out."""
    pair = certificates.client
    given = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "relay",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(certificates.ca),
        "ssl.certificate.location": str(pair.cert),
        "ssl.key.location": str(pair.key),
        "broker.address.family": "v4",
        **more,
    }
    return {name: value for name, value in given.items() if value}
