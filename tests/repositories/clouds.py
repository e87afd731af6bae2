"""Google Cloud Storage and Azure Blob Storage on this machine, as processes of their emulators.

gcp-storage-emulator is a package of PyPI. Azurite is Microsoft's own, on Node: ``tests/peers.sh`` in the
checkout, or azurite-blob on PATH. Tests are skipped where theirs is missing.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.repositories.announced import running
from tests.repositories.support import QUICK
from toutates.repositories.interface import Repository
from toutates.repositories.opening import open_repositories
from toutates.repositories.pace import Patience
from toutates.repositories.specification import read_specifications
from toutates.repositories.web.credentials import shared_key

__all__ = ["ACCOUNT", "KEY", "Azurite", "GoogleEmulator", "azurite", "google_emulator", "opened"]

ROOT: Final = Path(__file__).resolve().parents[2]
_SECONDS: Final = 120.0
#: Account and key of Azurite, which Microsoft documents.
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def opened(url: str, cache: Path, patience: Patience = QUICK, size: int = 2**40) -> Iterator[Repository]:
    """The repository of an address, with a cache of its own, as a server opens it."""
    [one] = open_repositories(
        read_specifications([url], endpoint=None, region=None),
        cache_root=cache,
        cache_size=size,
        patience=patience,
    )
    try:
        yield one
    finally:
        one.stop()


def _ask(method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> bytes:
    with urlopen(Request(url, body, dict(headers), method=method), timeout=_SECONDS) as answer:
        content: bytes = answer.read()
    return content


class GoogleEmulator:
    """A running gcp-storage-emulator, and what fills it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._buckets = 0

    def bucket(self, files: Mapping[str, bytes] = {}) -> str:
        """A new bucket with these objects."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        body = json.dumps({"name": name}).encode()
        _ask("POST", f"{self.url}/storage/v1/b", body, {"Content-Type": "application/json"})
        for key, content in files.items():
            self.put(name, key, content)
        return name

    def put(self, bucket: str, key: str, body: bytes) -> None:
        url = f"{self.url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
        _ask("POST", url, body, {"Content-Type": "application/octet-stream"})


class Azurite:
    """A running Azurite, and what fills it."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/{ACCOUNT}"
        self._containers = 0
        import base64

        self._sign = shared_key(ACCOUNT, base64.b64decode(KEY))

    def container(self, files: Mapping[str, bytes] = {}) -> str:
        """A new container with these blobs."""
        self._containers += 1
        name = f"container-{self._containers}"
        self._ask("PUT", f"{self.url}/{name}?restype=container")
        for key, content in files.items():
            self.put(name, key, content)
        return name

    def put(self, container: str, key: str, body: bytes) -> None:
        self._ask("PUT", f"{self.url}/{container}/{quote(key)}", body, {"x-ms-blob-type": "BlockBlob"})

    def _ask(self, method: str, url: str, body: bytes = b"", more: Mapping[str, str] = {}) -> None:
        headers = {**more, "x-ms-version": "2021-12-02", "Content-Type": "application/octet-stream"}
        signed: dict[str, Any] = {**headers, "Content-Length": str(len(body)) if body else ""}
        headers.update(self._sign(method, url, signed))
        _ask(method, url, body or None, headers)


@contextmanager
def google_emulator(folder: Path) -> Iterator[GoogleEmulator]:
    """gcp-storage-emulator."""
    pytest.importorskip("gcp_storage_emulator")
    start = (
        "import sys, time\nfrom gcp_storage_emulator.server import create_server\n"
        "server = create_server('127.0.0.1', 0, in_memory=True)\nserver.start()\n"
        "while server._api._httpd is None: time.sleep(0.01)\n"
        "print('port', server._api._httpd.server_address[1], flush=True)\ntime.sleep(100000)"
    )
    with running([sys.executable, "-c", start], r"^port (\d+)", folder / "google.log") as port:
        yield GoogleEmulator(port)


@contextmanager
def azurite(folder: Path, *more: str, scheme: str = "http") -> Iterator[Azurite]:
    """Azurite's blob service."""
    installed = ROOT / "node_modules" / ".bin" / "azurite-blob"
    program = str(installed) if installed.exists() else shutil.which("azurite-blob")
    if program is None or shutil.which("node") is None:
        pytest.skip("Azurite is not installed: tests/peers.sh")
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent"]
    command += ["--disableTelemetry", "--skipApiVersionCheck", *more]
    with running(command, r"listens on https?://127\.0\.0\.1:(\d+)", folder / "azurite.log") as port:
        yield Azurite(f"{scheme}://127.0.0.1:{port}")
