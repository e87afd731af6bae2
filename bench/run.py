"""CPU per request of Toutates, beside a grpc.aio server and nghttpd, in the same minutes on the same machine.

    python bench/run.py [--rounds 3] [--seconds 3] [--server 3.14t=.venv-314t/bin/python] [--json FILE]

**What is measured.** The CPU time of the server's process, user and system, all threads, from /proc/PID/stat before and
after a load, over the requests completed in it. Rates depend on the cores that the client takes and are printed for
orientation; the CPU of a request is what a machine full of servers pays.

**Against what.** `grpc.aio` is the typical Python server (baseline_grpc_aio.py). `nghttpd`, a C++ HTTP/2 server that
sends a file as long as the answer, is the limit: it neither parses a request nor computes. It takes part where it is
installed. Absolute times on shared machines are noise, hence the ratio to grpc.aio, taken round by round.

**Under which load.** h2load (Debian: nghttp2-client) sends one ModelInfer request of the example model `mlp` over and
over: 64 streams on one connection, and one stream on each of 16. The shapes are unlike, and a server can be good at one
only. Servers take turns within each round, and the order turns from round to round.

**And is it right?** Before and after each load, answers are fetched through tritonclient and compared with ONNX
Runtime's own. h2load does not look at grpc-status, so the bytes of its answers are counted as well: an error has no
message. A load with one failed, missing or short answer gives no figure, and the script ends with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb

ROOT = Path(__file__).resolve().parent.parent
MODEL = "mlp"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
BASELINE = "grpc.aio"
LIMIT = "nghttpd"

_WARM_UP_REQUESTS = 2000
_START_SECONDS = 60.0
# What a load may take before it counts as stuck, far beyond any server that still answers.
_LOAD_SECONDS = 300.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# The kernel rounds CPU time to hundredths of a second: from here on, that is less than a tenth of the figure.
_LEAST_CPU_SECONDS = 0.1

Row = npt.NDArray[np.float32]


class NoFigure(Exception):
    """The load did not go as it must, and its numbers mean nothing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the load arrives.

    Attributes:
        connections: TCP connections.
        streams: requests under way at once on each of them.
    """

    connections: int
    streams: int

    def __str__(self) -> str:
        return f"{self.connections}x{self.streams}"


SHAPES = (Shape(1, 64), Shape(16, 1))


@dataclass(frozen=True, slots=True)
class Figure:
    """What one load came to."""

    requests: int
    cpu_us: float
    requests_per_second: float
    mean_latency_us: float


@dataclass(slots=True)
class Server:
    """A running server.

    Attributes:
        name: how it is called in the tables.
        address: host:port.
        process: the one process whose CPU counts.
        log: the file that receives its output.
        infers: whether it is an inference server, whose answers can be checked.
        figures: one per round, by shape.
        failure: why there is no figure, once there is a reason.
    """

    name: str
    address: str
    process: subprocess.Popen[bytes]
    log: Path
    infers: bool
    figures: dict[Shape, list[Figure]] = field(default_factory=dict)
    failure: str = ""


# --- one request, and what must come back ---------------------------------------------------------------------------


class Question:
    """The request the load consists of, and the right answers to it and to others.

    Args:
        model_path: the ONNX file the servers serve.
    """

    def __init__(self, model_path: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(str(model_path), options, providers=["CPUExecutionProvider"])
        self._rng = np.random.default_rng(11)
        self._row = self._rows(1)
        request = pb.ModelInferRequest(model_name=MODEL)
        request.inputs.add(name="INPUT", datatype="FP32", shape=self._row.shape)
        request.raw_input_contents.append(self._row.tobytes())
        self._request: bytes = request.SerializeToString()
        self.body = b"\0" + len(self._request).to_bytes(4, "big") + self._request

    def _rows(self, count: int) -> Row:
        return self._rng.normal(size=(count, 64)).astype(np.float32)

    def _answer(self, rows: Row) -> Row:
        answer: Row = self._session.run(None, {"INPUT": rows})[0]
        return answer

    def plain_answer(self) -> bytes:
        """The length-prefixed message a server sends that sets nothing but what it must."""
        answer = self._answer(self._row)
        response = pb.ModelInferResponse(model_name=MODEL, model_version="1")
        response.outputs.add(name="OUTPUT", datatype="FP32", shape=answer.shape)
        response.raw_output_contents.append(answer.tobytes())
        message: bytes = response.SerializeToString()
        return b"\0" + len(message).to_bytes(4, "big") + message

    def check(self, server: Server) -> int:
        """Compare a server's answers with ONNX Runtime's.

        Returns:
            The bytes of DATA that one answer to the load's request consists of.

        Raises:
            NoFigure: an answer is wrong, or there is none.
        """
        try:
            with grpc.insecure_channel(server.address) as channel:
                message: bytes = channel.unary_unary(METHOD)(self._request, timeout=30)
            raw = pb.ModelInferResponse.FromString(message).raw_output_contents[0]
            self._compare(np.frombuffer(raw, dtype="<f4").reshape(1, -1), self._answer(self._row))
            with triton.InferenceServerClient(server.address) as client:
                for count in (1, 1, 2, 3, 8):
                    rows = self._rows(count)
                    tensor = triton.InferInput("INPUT", rows.shape, "FP32")
                    tensor.set_data_from_numpy(rows)
                    result = client.infer(MODEL, [tensor], client_timeout=30)
                    self._compare(result.as_numpy("OUTPUT"), self._answer(rows))
        except (grpc.RpcError, triton.InferenceServerException, IndexError, ValueError) as error:
            raise NoFigure(f"a sampled request failed: {error}") from error
        return 5 + len(message)

    @staticmethod
    def _compare(given: Row, expected: Row) -> None:
        # Sums are taken in another order in a batch, hence not bit for bit.
        if given.shape != expected.shape or not np.allclose(given, expected, rtol=1e-4, atol=1e-5):
            raise NoFigure(f"a sampled answer is wrong: {given} instead of {expected}")


# --- servers --------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(name: str, command: Callable[[int], Sequence[str]], folder: Path, infers: bool = True) -> Iterator[Server]:
    """A server as a subprocess that has become ready; it is ended when the block is left.

    Args:
        name: how to call it.
        command: the command line that makes it listen on the given port of 127.0.0.1.
        folder: where its log goes.
        infers: False for one that is ready when it accepts connections.

    Raises:
        SystemExit: it cannot be started or did not become ready; the text has the end of its log.
    """
    port = free_port()
    log = folder / f"{name}.log"
    # Toutates runs from this checkout under every interpreter, whatever is installed there.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(command(port), stdout=output, stderr=output, env=environment)
        except OSError as error:
            raise SystemExit(f"{name} cannot be started: {error}") from error
    server = Server(name, f"127.0.0.1:{port}", process, log, infers)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not is_ready(server, port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} did not become ready ({shlex.join(command(port))}):\n{tail_of(log)}")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(server: Server, port: int) -> bool:
    if server.process.poll() is not None:
        return False
    if not server.infers:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0
    try:
        with triton.InferenceServerClient(server.address) as client:
            return bool(client.is_server_ready(client_timeout=5))
    except triton.InferenceServerException:
        return False


def check_alive(server: Server) -> None:
    """Raises ``NoFigure`` once the server's process has ended."""
    if server.process.poll() is not None:
        raise NoFigure(f"the server ended with status {server.process.returncode}:\n{tail_of(server.log)}")


def tail_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """User and system time of all threads of a process, ended ones included; the kernel counts in hundredths."""
    # The second field is the command's name in parentheses and may hold spaces; utime and stime are fields 14 and 15.
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


# --- the load -------------------------------------------------------------------------------------------------------

_REQUESTS = re.compile(r"requests: (\d+) total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored")
_CODES = re.compile(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx")
_DATA = re.compile(r"\((\d+)\) data$", re.MULTILINE)
_FINISHED = re.compile(r"finished in ([\d.]+)(us|ms|s|m)")
_LATENCY = re.compile(r"time for request:\s+\S+\s+\S+\s+([\d.]+)(us|ms|s|m)")
_UNIT_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


def load(server: Server, shape: Shape, requests: int, body: Path, answer_bytes: int) -> Figure:
    """Send ``requests`` requests with h2load.

    Raises:
        NoFigure: not every one of them got a complete answer.
    """
    check_alive(server)
    before = cpu_seconds(server.process)
    command = ["h2load", "-n", str(requests), "-c", str(shape.connections), "-m", str(shape.streams), "-d", str(body)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://{server.address}{METHOD}"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LOAD_SECONDS).stdout
    except subprocess.TimeoutExpired as error:
        raise NoFigure(f"h2load did not finish in {_LOAD_SECONDS:.0f} s") from error
    except subprocess.CalledProcessError as error:
        raise NoFigure(f"h2load failed: {error.stderr.strip()}") from error
    check_alive(server)
    used = cpu_seconds(server.process) - before

    counts, codes, data = _REQUESTS.search(output), _CODES.search(output), _DATA.search(output)
    finished, latency = _FINISHED.search(output), _LATENCY.search(output)
    if not (counts and codes and data and finished and latency):
        raise NoFigure(f"h2load's report is not understood:\n{output}")
    if [int(count) for count in counts.groups()] != [requests, requests, requests, 0, 0]:
        raise NoFigure(f"h2load: {counts[0]} (asked for {requests})")
    if int(codes[1]) != requests:
        raise NoFigure(f"h2load: {codes[0]}")
    if int(data[1]) != requests * answer_bytes:
        raise NoFigure(f"answers add up to {data[1]} bytes instead of {requests} x {answer_bytes}")
    seconds = float(finished[1]) * _UNIT_SECONDS[finished[2]]
    return Figure(
        requests=requests,
        cpu_us=used / requests * 1e6,
        requests_per_second=requests / seconds,
        mean_latency_us=float(latency[1]) * _UNIT_SECONDS[latency[2]] * 1e6,
    )


def measure(servers: Sequence[Server], question: Question, folder: Path, options: argparse.Namespace) -> None:
    """Load the servers in turn, and put the figures, or the reason for their absence, into them."""
    body = folder / "body"
    body.write_bytes(question.body)
    plain_bytes = len(question.plain_answer())
    planned: dict[tuple[str, Shape], int] = {}
    for round_index in range(options.rounds):
        for shape in SHAPES:
            turn = round_index % len(servers)
            for server in [*servers[turn:], *servers[:turn]]:
                if server.failure:
                    continue
                try:
                    answer_bytes = question.check(server) if server.infers else plain_bytes
                    if (server.name, shape) not in planned:
                        # Fills caches and pools, and tells how many requests make the wanted time.
                        rate = load(server, shape, _WARM_UP_REQUESTS, body, answer_bytes).requests_per_second
                        wanted = options.requests or max(_WARM_UP_REQUESTS, int(rate * options.seconds))
                        planned[server.name, shape] = wanted
                    figure = load(server, shape, planned[server.name, shape], body, answer_bytes)
                    if server.infers:
                        question.check(server)
                    if figure.requests * figure.cpu_us < _LEAST_CPU_SECONDS * 1e6:
                        raise NoFigure("the load was too short to tell CPU time; raise --seconds or --requests")
                except NoFigure as error:
                    server.failure = f"{shape}, round {round_index + 1}: {error}"
                else:
                    server.figures.setdefault(shape, []).append(figure)


# --- the report -----------------------------------------------------------------------------------------------------


def ratios(server: Server, baseline: Server | None, shape: Shape) -> list[float]:
    """How many times the server's CPU the baseline took, round by round."""
    if baseline is None or baseline.failure:
        return []
    pairs = zip(baseline.figures[shape], server.figures[shape], strict=True)
    return [theirs.cpu_us / ours.cpu_us for theirs, ours in pairs]


def report(servers: Sequence[Server]) -> None:
    baseline = next((server for server in servers if server.name == BASELINE), None)
    for shape in SHAPES:
        print(f"\n{shape.connections} connection(s) x {shape.streams} stream(s)")
        columns = ("server", "CPU us/request (min-max)", f"{BASELINE} takes x times", "req/s", "mean us")
        print("  {:<16}{:<30}{:<28}{:>9}{:>10}".format(*columns))
        for server in servers:
            if server.failure:
                print(f"  {server.name:<16}no figure")
                continue
            figures = server.figures[shape]
            cpu = [figure.cpu_us for figure in figures]
            less = ratios(server, baseline, shape)
            cpu_text = f"{statistics.median(cpu):.1f} ({min(cpu):.1f}-{max(cpu):.1f})"
            less_text = f"{statistics.median(less):.1f} ({min(less):.1f}-{max(less):.1f})" if less else "-"
            rate = statistics.median(figure.requests_per_second for figure in figures)
            latency = statistics.median(figure.mean_latency_us for figure in figures)
            print(f"  {server.name:<16}{cpu_text:<30}{less_text:<28}{rate:>9,.0f}{latency:>10,.0f}")
    for server in servers:
        if server.failure:
            print(f"\n{server.name}: {server.failure}", file=sys.stderr)


def as_json(servers: Sequence[Server], options: argparse.Namespace) -> dict[str, Any]:
    """Everything measured, and what one needs to know to judge it."""
    baseline = next((server for server in servers if server.name == BASELINE), None)
    cpu_model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    h2load = subprocess.run(["h2load", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    results: list[dict[str, Any]] = []
    for server in servers:
        shapes = {} if server.failure else server.figures
        for shape, figures in shapes.items():
            cpu, less = [figure.cpu_us for figure in figures], ratios(server, baseline, shape)
            results.append(
                {
                    "server": server.name,
                    "shape": str(shape),
                    "cpu_us_median": statistics.median(cpu),
                    "ratio_median": statistics.median(less) if less else None,
                    "rounds": [asdict(figure) for figure in figures],
                }
            )
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpu": cpu_model[1] if cpu_model else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
        },
        "versions": {
            "python": platform.python_version(),
            "onnxruntime": ort.__version__,
            "grpcio": grpc.__version__,
            "h2load": h2load,
        },
        "options": {"rounds": options.rounds, "seconds": options.seconds, "requests": options.requests},
        "results": results,
        "failures": {server.name: server.failure for server in servers if server.failure},
    }


# --- the command line -----------------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU per request of Toutates beside grpc.aio and nghttpd.")
    parser.add_argument("--rounds", type=int, default=3, help="times each server is loaded in each shape (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one load, roughly (%(default)s)")
    parser.add_argument("--requests", type=int, help="exact number of requests of one load, instead of --seconds")
    parser.add_argument(
        "--servers",
        default=f"toutates,{BASELINE},{LIMIT}",
        help="which of the usual servers take part (%(default)s)",
    )
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="NAME=PYTHON [FLAGS]",
        help="add Toutates under another interpreter or with other flags; may be repeated",
    )
    parser.add_argument("--toutates-flags", default="", metavar="FLAGS", help="flags for the server `toutates`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    options.servers = [name for name in options.servers.split(",") if name]
    unknown = set(options.servers) - {"toutates", BASELINE, LIMIT}
    if unknown:
        parser.error(f"--servers: unknown {', '.join(sorted(unknown))}")
    if options.rounds < 1 or (options.requests is not None and options.requests < 1) or options.seconds <= 0:
        parser.error("--rounds, --requests and --seconds must be positive")
    for entry in options.server:
        name, equals, command = entry.partition("=")
        if not (name and equals and command.strip()):
            parser.error(f"--server {entry!r}: expected NAME=PYTHON [FLAGS]")
    names = [*options.servers, *(entry.partition("=")[0] for entry in options.server)]
    if not names or len(names) != len(set(names)):
        parser.error("servers need names, each its own")
    return options


def commands(options: argparse.Namespace, repository: Path, htdocs: Path) -> dict[str, Callable[[int], Sequence[str]]]:
    """How to start each server, by name."""

    def toutates(python: str, flags: Sequence[str]) -> Callable[[int], Sequence[str]]:
        start = [python, "-m", "toutates", "--model-repository", str(repository), *flags]
        return lambda port: [*start, "--grpc-addr", f"127.0.0.1:{port}"]

    model_path = str(repository / MODEL / "1" / "model.onnx")
    baseline = [sys.executable, str(ROOT / "bench" / "baseline_grpc_aio.py"), "--model", model_path]
    known: dict[str, Callable[[int], Sequence[str]]] = {
        "toutates": toutates(sys.executable, shlex.split(options.toutates_flags)),
        BASELINE: lambda port: [*baseline, "--grpc-addr", f"127.0.0.1:{port}"],
        LIMIT: lambda port: [
            *(shutil.which(LIMIT) or LIMIT, "--no-tls", "--address=127.0.0.1", f"--htdocs={htdocs}"),
            *("--trailer=grpc-status: 0", str(port)),
        ],
    }
    chosen = {name: known[name] for name in options.servers}
    for entry in options.server:
        name, _, command = entry.partition("=")
        python, *flags = shlex.split(command)
        chosen[name] = toutates(python, flags)
    return chosen


def main() -> int:
    options = parse_arguments()
    if shutil.which("h2load") is None:
        raise SystemExit("h2load is missing; on Debian it comes with: apt-get install nghttp2-client")
    if LIMIT in options.servers and shutil.which(LIMIT) is None:
        options.servers.remove(LIMIT)
        print(f"Without {LIMIT}; on Debian it comes with: apt-get install nghttp2-server", file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="toutates-bench-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        repository, htdocs = folder / "models", folder / "htdocs"
        script = ROOT / "examples" / "make_repository.py"
        subprocess.run(
            [sys.executable, script, repository, "--models", MODEL], check=True, stdout=subprocess.DEVNULL, timeout=60
        )
        question = Question(repository / MODEL / "1" / "model.onnx")
        answer = htdocs / METHOD.lstrip("/")
        answer.parent.mkdir(parents=True)
        answer.write_bytes(question.plain_answer())

        servers = [
            stack.enter_context(running(name, command, folder, infers=name != LIMIT))
            for name, command in commands(options, repository, htdocs).items()
        ]
        measure(servers, question, folder, options)

    report(servers)
    if options.json:
        options.json.write_text(json.dumps(as_json(servers, options), indent=2) + "\n", encoding="utf-8")
    return 1 if any(server.failure for server in servers) else 0


if __name__ == "__main__":
    sys.exit(main())
