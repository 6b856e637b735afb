# SPDX-License-Identifier: MIT
"""Certificates made with the openssl program: an authority and what it signs.

Ownership  All files are in the directory that the caller gives.
"""

from __future__ import annotations

import itertools
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


class Certificate(NamedTuple):
    cert: Path
    key: Path


class TlsFiles(NamedTuple):
    """What a server shows and believes, and with it those who ask it."""

    authority: Path
    certificate: Certificate

    def directives(self) -> list[tuple[str, str]]:
        """Of a server that asks its clients for no certificate; it shows its own to other servers."""
        return [
            ("tls-cert-file", str(self.certificate.cert)),
            ("tls-key-file", str(self.certificate.key)),
            ("tls-ca-cert-file", str(self.authority)),
            ("tls-auth-clients", "no"),
        ]

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


class Authority:
    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = name
        self._serials = itertools.count(1)
        self.cert = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        subject = ["-subj", f"/CN={name}", "-days", "2"]
        _openssl("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.cert, *subject)

    def issue(self, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2) -> Certificate:
        """Of a server or client; `names` as openssl writes subjectAltName, negative `days` are over already."""
        serial = next(self._serials)
        stem = self._directory / f"{self._name}-{serial}"
        made = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={names}\n")
        _openssl("req", "-new", *_NEW_KEY, "-keyout", made.key, "-out", request, "-subj", f"/CN={stem.name}")
        signed = ["-CA", self.cert, "-CAkey", self._key, "-set_serial", str(serial), "-days", str(days)]
        _openssl("x509", "-req", "-in", request, *signed, "-extfile", extensions, "-out", made.cert)
        return made
