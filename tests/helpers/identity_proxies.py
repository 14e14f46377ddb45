"""Proxies that give the tests' servers what the clouds have: tokens in front of Google's, TLS in front of Azure's."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import ssl
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from google.auth import jwt

from airflow_txlog.clock import SYSTEM_CLOCK
from tests.helpers.fault_proxy import FaultProxy


def _pem_of(key: rsa.RSAPrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _certificate_of(key: rsa.RSAPrivateKey) -> str:
    """A certificate for 127.0.0.1, signed by itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
    made = made.add_extension(names, critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


class WithTokens(FaultProxy):
    """A server of Google that answers who shows an access token that is good, and gives one for a signed claim."""

    TOKENS = "canary-token-"

    def __init__(self, endpoint: str, life_s: int) -> None:
        super().__init__(endpoint)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.keyfile = {
            "type": "service_account",
            "client_email": "lake@tests.iam.gserviceaccount.com",
            "private_key_id": "1",
            "private_key": _pem_of(key),
            "token_uri": f"{self.endpoint}/token",
        }
        self.issued_ms: list[int] = []
        self._certificate = _certificate_of(key)
        self._life_s = life_s
        self._good_until_ms: dict[str, int] = {}

    def forward(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        now_ms = SYSTEM_CLOCK.now_ms()
        if path == "/token":
            return self._issue(parse_qs(body.decode())["assertion"][0], now_ms)
        shown = headers.get("Authorization", "").removeprefix("Bearer ")
        if self._good_until_ms.get(shown, 0) <= now_ms:
            return 401, [], b""
        return super().forward(method, path, headers, body)

    def _issue(self, assertion: str, now_ms: int) -> tuple[int, list[tuple[str, str]], bytes]:
        try:
            jwt.decode(assertion, self._certificate)
        except ValueError:
            refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            return 400, [("Content-Type", "application/json")], json.dumps(refusal).encode()
        token = self.TOKENS + uuid.uuid4().hex
        self._good_until_ms[token] = now_ms + self._life_s * 1000
        self.issued_ms.append(now_ms)
        answer = {"access_token": token, "expires_in": self._life_s, "token_type": "Bearer"}
        return 200, [("Content-Type", "application/json")], json.dumps(answer).encode()


class OverTls(FaultProxy):
    """A server at an address of https; `authority` is the path of the certificate by which it is trusted."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        super().__init__(endpoint)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.authority, own = folder / "authority.pem", folder / "own.pem"
        self.authority.write_text(_certificate_of(key))
        own.write_text(_pem_of(key) + self.authority.read_text())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.endpoint = self.endpoint.replace("http:", "https:")
