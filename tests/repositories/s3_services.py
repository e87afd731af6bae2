"""S3 services as processes of their own, and a TCP proxy before them that counts requests and makes connections fail.

Two implementations, so that none of them is what the product is fitted to: moto's server, in Python, and s3rver, on
Node (``tests/peers.sh`` in the checkout, or s3rver on PATH; tests with it are skipped without).
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.repositories.announced import running

__all__ = [
    "CREDENTIALS",
    "PAGE",
    "Fault",
    "Proxy",
    "S3Service",
    "cached_files",
    "files_in",
    "moto",
    "nothing_is_left",
    "quiet",
    "s3rver",
]

ROOT: Final = Path(__file__).resolve().parents[2]
_SECONDS: Final = 120.0
#: objects on one page of moto's listings; 1000 on those of others
PAGE: Final = 9
#: What s3rver lets in, and moto does not look at. AWS_MAX_ATTEMPTS keeps tests of failures short.
CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "S3RVER",
    "AWS_SECRET_ACCESS_KEY": "S3RVER",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "2",
}


def quiet(*_: object) -> None:
    """Progress that nobody wants to see."""


@dataclass(slots=True)
class S3Service:
    """A running S3 service, and a client of the tests' own that fills it."""

    port: int
    client: Any
    _buckets: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bucket(self, files: Mapping[str, bytes] = {}) -> str:
        """A new bucket with these objects."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        self.client.create_bucket(Bucket=name)
        for key, body in files.items():
            self.put(name, key, body)
        return name

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=body)

    def put_in_parts(self, bucket: str, key: str, body: bytes, part_size: int = 5 * 2**20) -> str:
        """As large files are uploaded; returns the ETag, which then is no MD5."""
        upload = self.client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        parts = []
        for number, start in enumerate(range(0, len(body), part_size), 1):
            part = self.client.upload_part(
                Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=body[start : start + part_size]
            )
            parts.append({"ETag": part["ETag"], "PartNumber": number})
        done = self.client.complete_multipart_upload(
            Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
        )
        return str(done["ETag"])


def _client(port: int) -> Any:
    boto3 = pytest.importorskip("boto3")
    from botocore.config import Config

    return boto3.Session("S3RVER", "S3RVER", region_name="us-east-1").client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", config=Config(s3={"addressing_style": "path"})
    )


@contextmanager
def _running(command: list[str], announced: str, log: Path) -> Iterator[S3Service]:
    """A service that prints its port, as the group of this pattern."""
    environment = {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore", "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)}
    with running(command, announced, log, **environment) as port:
        client = _client(port)
        yield S3Service(port, client)
        client.close()


@contextmanager
def moto(folder: Path) -> Iterator[S3Service]:
    """moto's server."""
    pytest.importorskip("moto")
    pytest.importorskip("flask_cors")
    start = "import sys; from moto.server import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", start, "-H", "127.0.0.1", "-p", "0"]
    with _running(command, r"Running on http://127\.0\.0\.1:(\d+)", folder / "moto.log") as service:
        yield service


@contextmanager
def s3rver(folder: Path) -> Iterator[S3Service]:
    """s3rver."""
    installed = ROOT / "node_modules" / ".bin" / "s3rver"
    program = str(installed) if installed.exists() else shutil.which("s3rver")
    if program is None or shutil.which("node") is None:
        pytest.skip("s3rver is not installed: tests/peers.sh")
    command = [program, "-d", str(folder / "s3rver"), "-a", "127.0.0.1", "-p", "0", "--no-vhost-buckets", "--silent"]
    with _running(command, r"listening on .*?:(\d+)", folder / "s3rver.log") as service:
        yield service


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below a directory, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cached_files(cache: Path) -> list[Path]:
    """A path of every file that a cache has for models, whatever the number of links to it."""
    found = (path for path in cache.glob("models/*/files/**/*") if path.is_file())
    return list({path.stat().st_ino: path for path in found}.values())


def listed_files(folder: Path) -> set[str]:
    """The files of a folder of a cache that its manifest has as complete, by their paths."""
    try:
        lines = (folder / "manifest").read_bytes().splitlines()
    except FileNotFoundError:
        return set()
    return {json.loads(line)[0] for line in lines}


def nothing_is_left(cache: Path) -> bool:
    """Whether downloads that have ended left nothing but complete files."""
    return all(
        str(path.relative_to(folder / "files")) in listed_files(folder)
        for folder in (cache / "filling").iterdir()
        for path in (folder / "files").rglob("*")
        if path.is_file()
    )


@dataclass(slots=True)
class Fault:
    """What becomes of responses to requests whose first line has this pattern in it.

    Attributes:
        pattern: of the request's first line.
        times: how many responses.
        cut_at: bytes of the response after which the connection is closed; None for no cut.
        garble_at: number of the byte of the response that is changed; None for none.
        hold: the request is passed on once it is set.
        slow: the response comes in small pieces, ten in a second.
        replace: a pattern and its replacement in the response's head.
    """

    pattern: str
    times: int = 1
    cut_at: int | None = None
    garble_at: int | None = None
    hold: threading.Event | None = None
    slow: bool = False
    replace: tuple[bytes, bytes] | None = None


@dataclass
class Proxy:
    """Before a service: passes bytes on in both directions, one connection per request.

    Attributes:
        requests: first lines of all requests.
        faults: what to do to responses; the first that matches and has times left.
        before: called with the first line before a request is passed on.
    """

    upstream: int
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    before: Callable[[str], None] = quiet

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: set[socket.socket] = set()
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """Connections of clients that are open."""
        return len(self._sockets) // 2

    @property
    def reads(self) -> list[str]:
        """The requests for objects, not listings."""
        return [line for line in self.requests if "list-type" not in line]

    def close(self) -> None:
        """Close all connections, and end all threads."""
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._sockets:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        for fault in self.faults:
            if fault.hold is not None:
                fault.hold.set()
        for thread in self._threads:
            thread.join(_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                with socket.create_connection(("127.0.0.1", self.upstream)) as server:
                    self._pass_on(client, server)
            except OSError:
                pass  # one of the two has gone

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self._sockets |= {client, server}
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(65_536)
                if not data:
                    return
                head += data
            line = head.split(b"\r\n", 1)[0].decode()
            self.requests.append(line)
            self.before(line)
            fault = self._fault_for(line)
            if fault.hold is not None:
                fault.hold.wait(_SECONDS)
            # So that both sides close after it, and a connection is a request.
            server.sendall(re.sub(rb"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", head, count=1))
            self._answer(server, client, fault)
        finally:
            with self._lock:
                self._sockets -= {client, server}

    def _fault_for(self, line: str) -> Fault:
        with self._lock:
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, line):
                    fault.times -= 1
                    return fault
        return Fault("")

    def _answer(self, server: socket.socket, client: socket.socket, fault: Fault) -> None:
        passed = 0
        while data := server.recv(1_000 if fault.slow else 65_536):
            if fault.slow:
                self._closed.wait(0.1)
            if fault.replace is not None and not passed:
                data = re.sub(*fault.replace, data, count=1)
            if fault.garble_at is not None and passed <= fault.garble_at < passed + len(data):
                at = fault.garble_at - passed
                data = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
            if fault.cut_at is not None and passed + len(data) >= fault.cut_at:
                client.sendall(data[: fault.cut_at - passed])
                return
            client.sendall(data)
            passed += len(data)
