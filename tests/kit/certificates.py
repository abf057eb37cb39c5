"""Certificates for tests: an authority of one's own, and what it signs. Made by openssl, valid for two days."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


class Certificate(NamedTuple):
    """The paths of a certificate and its key."""

    file: str
    key: str


class Authority:
    """Signs certificates. `file` is what those need who are to trust them."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._key = str(directory / "ca.key")
        self.file = str(directory / "ca.crt")
        _openssl(
            "req", "-x509", *_KEY, "-nodes", "-keyout", self._key, "-out", self.file, "-subj", "/CN=ca", "-days", "2"
        )

    def issue(
        self, name: str, *, hosts: str = "IP:127.0.0.1,DNS:localhost", days: int = 2, password: str = ""
    ) -> Certificate:
        """A certificate for these hosts; days: -1 for one that has expired; password: of its key."""
        made = Certificate(str(self._directory / f"{name}.crt"), str(self._directory / f"{name}.key"))
        request, names = str(self._directory / f"{name}.csr"), self._directory / f"{name}.names"
        names.write_text(f"subjectAltName={hosts}\n")
        kept = ("-passout", f"pass:{password}") if password else ("-nodes",)
        _openssl("req", "-new", *_KEY, *kept, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}")
        signed = ("-CA", self.file, "-CAkey", self._key, "-CAcreateserial", "-extfile", str(names), "-days", str(days))
        _openssl("x509", "-req", "-in", request, *signed, "-out", made.file)
        return made


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
