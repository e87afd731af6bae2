"""The servers: how each is started, and what it must be given."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tritonclient.grpc as triton

from bench.errors import NoFigure, Unavailable
from bench.models import ROOT, Model
from bench.protocols import GRPC, STREAM
from bench.question import METHOD, Question
from bench.raw_server import model_argument

__all__ = [
    "Kind",
    "Server",
    "Site",
    "fastapi",
    "free_port",
    "grpc_baseline",
    "mlserver",
    "nghttpd",
    "raw",
    "running",
    "toutates",
    "triton_server",
]

_START_SECONDS = 90.0
_STOP_SECONDS = 15.0
_TRITON_TYPES = {"FP32": "TYPE_FP32", "INT32": "TYPE_INT32"}


@dataclass(frozen=True, slots=True)
class Site:
    """Where a server is to serve, and what.

    Attributes:
        port: to listen on, of 127.0.0.1.
        http_port: for REST, where that has a port of its own.
        models: all in one repository of the layout MODEL/VERSION/model.onnx.
        folder: empty, for what the server needs beside it.
    """

    port: int
    http_port: int
    models: Sequence[Model]
    folder: Path

    @property
    def repository(self) -> Path:
        return self.models[0].repository


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to serve.

    Attributes:
        name: in tables and on the command line.
        title: what it is, in a line.
        command: its command line; may write into the site's folder.
        environment: variables beside the inherited ones.
        infers: False for one that sends a file and can neither be asked nor checked.
        counts: whether ModelStatistics tells its rows and runs.
        reads_config: whether it reads config.yaml.
        grpc, rest: whether it speaks that.
        streams: whether it has ModelStreamInfer.
        own_http_port: whether it has a port of its own for REST; otherwise that is spoken on the only one.
        not_for_perf_analyzer: why perf_analyzer cannot load it; empty if it can.
    """

    name: str
    title: str
    command: Callable[[Site], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    infers: bool = True
    counts: bool = False
    reads_config: bool = False
    grpc: bool = True
    rest: bool = False
    streams: bool = False
    own_http_port: bool = False
    not_for_perf_analyzer: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        kind: what it is.
        address: host:port.
        http_address: of REST.
        process: the process that was started; it may have children.
        log: the file that receives its output.
    """

    kind: Kind
    address: str
    http_address: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def infers(self) -> bool:
        return self.kind.infers

    @property
    def counts(self) -> bool:
        return self.kind.counts

    def speaks(self, protocol: str) -> bool:
        """Whether it can be asked over a protocol."""
        if protocol == STREAM:
            return self.kind.streams
        return self.kind.grpc if protocol == GRPC else self.kind.rest

    def address_of(self, protocol: str) -> str:
        """host:port of a protocol."""
        return self.address if protocol in (GRPC, STREAM) else self.http_address

    def check_alive(self) -> None:
        """Raises ``NoFigure`` once the process has ended."""
        if self.process.poll() is not None:
            raise NoFigure(f"the server ended with status {self.process.returncode}: {_tail_of(self.log)}")


def toutates(name: str, title: str, python: str, flags: Sequence[str]) -> Kind:
    """Toutates from this checkout, under an interpreter that has its dependencies."""

    def command(site: Site) -> Sequence[str]:
        # With the HTTP side, as by default; but several servers may run at once. REST is spoken on the port of gRPC.
        address = ("--grpc-addr", f"127.0.0.1:{site.port}", "--metrics-addr", "127.0.0.1:0", "--http-addr", "off")
        return [python, "-m", "toutates", "--model-repository", str(site.repository), *address, *flags]

    return Kind(name, title, command, counts=True, reads_config=True, rest=True, streams=True)


def grpc_baseline(name: str, title: str, module: str) -> Kind:
    """One of the two servers on grpcio, under the benchmark's own interpreter."""

    def command(site: Site) -> Sequence[str]:
        where = ("--model-repository", str(site.repository), "--grpc-addr", f"127.0.0.1:{site.port}")
        return [sys.executable, "-m", f"bench.{module}", *where]

    return Kind(name, title, command, counts=True)


def fastapi(python: Path) -> Kind:
    """FastAPI on uvicorn, one process."""

    def command(site: Site) -> Sequence[str]:
        where = ("--model-repository", str(site.repository), "--http-addr", f"127.0.0.1:{site.port}")
        return [str(python), "-m", "bench.baseline_fastapi", *where]

    title = "the typical Python server over REST: FastAPI on uvicorn (uvloop, httptools), orjson, no batching"
    reason = "perf_analyzer is run over gRPC here"
    return Kind("fastapi", title, command, grpc=False, rest=True, not_for_perf_analyzer=reason)


def mlserver(python: Path) -> Kind:
    """MLServer with ``bench.mlserver_model`` as its runtime.

    Inference runs in the server's process (``parallel_workers`` 0), and metrics are off: its cheapest way for a small
    model.
    """

    def command(site: Site) -> Sequence[str]:
        settings = {
            "host": "127.0.0.1",
            "grpc_port": site.port,
            "http_port": site.http_port,
            "grpc_max_message_length": 2**31 - 1,
            "metrics_endpoint": None,
            "parallel_workers": 0,
            "debug": False,
        }
        (site.folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        for model in site.models:
            one = {
                "name": model.name,
                "implementation": "bench.mlserver_model.OnnxModel",
                "parameters": {"uri": str(model.path), "version": "1"},
            }
            (site.folder / model.name).mkdir()
            (site.folder / model.name / "model-settings.json").write_text(json.dumps(one), encoding="utf-8")
        return [str(python.parent / "mlserver"), "start", str(site.folder)]

    title = "MLServer, inference in the server's process, metrics off"
    return Kind("mlserver", title, command, not_for_perf_analyzer="MLServer has no ModelConfig, which it asks for")


def triton_server(python: Path) -> Kind:
    """The tritonserver in the package nvidia-pytriton, with ``bench.triton_model`` in its Python backend.

    Raises:
        Unavailable: the package has nothing for this Python.
    """
    packages = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
    )
    home = packages / "pytriton" / "tritonserver"
    version = packages.parent.name.removeprefix("python")
    stub = home / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise Unavailable(f"nvidia-pytriton has no Python backend for Python {version}; 3.8 to 3.13 have one")

    def command(site: Site) -> Sequence[str]:
        backends, models = site.folder / "backends", site.folder / "models"
        shutil.copytree(home / "backends", backends)
        shutil.copy(stub, backends / "python")
        for model in site.models:
            version_folder = models / model.name / "1"
            version_folder.mkdir(parents=True)
            shutil.copy(model.path, version_folder)
            shutil.copy(ROOT / "bench" / "triton_model.py", version_folder / "model.py")
            (models / model.name / "config.pbtxt").write_text(_triton_config(model), encoding="utf-8")
        flags = [f"--model-repository={models}", f"--backend-directory={backends}"]
        flags += ["--allow-metrics=false", "--grpc-address=127.0.0.1", f"--grpc-port={site.port}"]
        flags += ["--http-address=127.0.0.1", f"--http-port={site.http_port}"]
        return [str(home / "bin" / "tritonserver"), *flags]

    # The stub is linked with libpython, which an interpreter of one's own keeps beside it.
    libraries = [str(packages / "nvidia_pytriton.libs"), str(Path(sys.base_prefix) / "lib")]
    environment = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(packages),
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
    }
    title = "Triton Inference Server (from nvidia-pytriton), its Python backend running ONNX Runtime, dynamic batching"
    return Kind("triton", title, command, environment, counts=True, rest=True, streams=True, own_http_port=True)


def nghttpd(program: str) -> Kind:
    """A C++ HTTP/2 server that sends a file as long as the answer: it neither parses a request nor computes."""

    def command(site: Site) -> Sequence[str]:
        answer = site.folder / METHOD.lstrip("/")
        answer.parent.mkdir(parents=True)
        answer.write_bytes(Question(site.models[0]).plain_answer())
        flags = ["--no-tls", "--address=127.0.0.1", f"--htdocs={site.folder}", "--trailer=grpc-status: 0"]
        return [program, *flags, str(site.port)]

    title = "the limit: a C++ HTTP/2 server that sends a file as long as the answer, and neither parses nor computes"
    reason = "nghttpd answers no other RPC"
    return Kind("nghttpd", title, command, infers=False, not_for_perf_analyzer=reason)


def raw() -> Kind:
    """What large requests take at least: see ``bench.raw_server``."""

    def command(site: Site) -> Sequence[str]:
        models = [model_argument(model) for model in site.models]
        return [sys.executable, "-m", "bench.raw_server", "--port", str(site.port), *models]

    title = "the limit of large requests: recv_into, one copy, ONNX Runtime on bound buffers, one copy, sendall"
    return Kind("raw", title, command, infers=False)


@contextlib.contextmanager
def running(kind: Kind, models: Sequence[Model], folder: Path) -> Iterator[Server]:
    """A server as a subprocess that has become ready; it is ended when the block is left.

    Args:
        kind: what to start.
        models: what to serve, of one repository.
        folder: does not exist yet, for the log and what the server needs.

    Raises:
        Unavailable: it cannot be started or did not become ready; the text has the end of its log.
    """
    site_folder = folder / "site"
    site_folder.mkdir(parents=True)
    site = Site(free_port(), free_port(), models, site_folder)
    log = folder / "log"
    # Toutates and bench are this checkout's under every interpreter, whatever is installed there.
    own = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "ORT_DISABLE_TELEMETRY": "1"}
    environment = {**os.environ, **own, **kind.environment}
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(kind.command(site), stdout=output, stderr=output, env=environment)
        except OSError as error:
            raise Unavailable(f"cannot be started: {error}") from error
    http_port = site.http_port if kind.own_http_port else site.port
    server = Server(kind, f"127.0.0.1:{site.port}", f"127.0.0.1:{http_port}", process, log)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _is_ready(server, models):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"did not become ready: {_tail_of(log)}")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(server: Server, models: Sequence[Model]) -> bool:
    if server.process.poll() is not None:
        return False
    host, _, port = server.address.rpartition(":")
    with socket.socket() as probe:
        if probe.connect_ex((host, int(port))) != 0:
            return False
    if not server.infers:
        return True
    if not server.kind.grpc:
        return all(_is_ready_over_http(server.http_address, model.name) for model in models)
    try:
        with triton.InferenceServerClient(server.address) as client:
            return all(client.is_model_ready(model.name, client_timeout=5) for model in models)
    except triton.InferenceServerException:
        return False


def _is_ready_over_http(address: str, model: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", f"/v2/models/{model}/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _triton_config(model: Model) -> str:
    """config.pbtxt: batches like those of Toutates, without a delay."""
    dims, output_dims = (", ".join(map(str, row)) for row in (model.row, model.output_row))
    return (
        f'backend: "python"\nmax_batch_size: {model.batch_size}\n'
        f'input {{ name: "{model.input}" data_type: {_TRITON_TYPES[model.datatype]} dims: [{dims}] }}\n'
        f'output {{ name: "{model.output}" data_type: TYPE_FP32 dims: [{output_dims}] }}\n'
        "dynamic_batching { }\ninstance_group { kind: KIND_CPU count: 1 }\n"
    )


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail_of(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-4:]) or "it printed nothing"
