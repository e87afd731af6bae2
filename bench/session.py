"""One run: what can take part, and the parts in their order."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bench import density, goodput, machine, memory, servers, sweeps, text_load
from bench.client import Load
from bench.environments import Environments, PerfAnalyzerProgram, debian_program
from bench.errors import Unavailable
from bench.h2load import H2load
from bench.measure import Measurer
from bench.models import MODELS
from bench.options import BASELINE, REST_BASELINE, Options, h2load_shape, perf_analyzer_shape, stream_shape
from bench.perf_analyzer import PerfAnalyzer
from bench.protocols import BINARY, GRPC
from bench.question import Question
from bench.results import Cell, Results
from bench.servers import Kind
from bench.start import Starter, in_turn
from bench.stream_load import StreamLoad

__all__ = ["Session"]

# With these the sweeps are made: those that take long with a server that answers slowly are left to the loads.
_SWEPT = ("toutates", "toutates-3.14t", BASELINE)
_PAYLOAD_SHAPES = ((1, 1), (8, 1))
_PAYLOAD_PROTOCOLS = (GRPC, BINARY)
_IDLE_SHAPE = (16, 1)
_MEMORY_SHAPE = (16, 8)

_Found = TypeVar("_Found")


class Session:
    """A run.

    Args:
        options: what to do.
        results: filled as it goes, and kept at ``path``.
        path: a JSON file.
    """

    def __init__(self, options: Options, results: Results, path: Path) -> None:
        self._options = options
        self._results = results
        self._environments = Environments(options.environments)
        self._measurer = Measurer(results, path, options.seconds)
        self._h2load = self._found("h2load", lambda: debian_program("h2load", "nghttp2-client"))
        self._perf_analyzer: PerfAnalyzerProgram | None = None
        named = {load for model in options.models for load in options.loads_of(model)}
        if "loads" in options.parts and any(map(perf_analyzer_shape, named)):
            self._perf_analyzer = self._found("perf_analyzer", self._environments.perf_analyzer)

    def run(self) -> None:
        """Measure everything that is asked for and can be."""
        open_files = machine.raise_file_limit()
        self._describe()
        kinds = self._kinds()
        self._results.servers = {kind.name: kind.title for kind in kinds}
        self._measurer.save()
        starter = Starter(kinds, self._results)
        own = {server.name for server in self._options.own_servers}
        swept = starter.only(lambda kind: kind.name in _SWEPT or kind.name in own)
        rounds = self._options.rounds
        with tempfile.TemporaryDirectory(prefix="toutates-bench-") as scratch:
            folder = Path(scratch)
            if "loads" in self._options.parts:
                for model in self._options.models:
                    self._tell(f"loads with {model}")
                    self._measure_loads(model, folder / "loads" / model, starter)
            if text_load.PART in self._options.parts:
                self._tell("texts")
                own_kinds = starter.only(lambda kind: kind.name.startswith("toutates") or kind.name in own)
                environments = self._environments
                text_load.measure_texts(
                    folder / "text", own_kinds, environments, self._measurer, self._results, rounds, self._h2load
                )
            if "payload" in self._options.parts:
                loads = [
                    replace(load, protocol=protocol)
                    for shape in _PAYLOAD_SHAPES
                    if (load := self._h2load_of("payload", shape))
                    for protocol in _PAYLOAD_PROTOCOLS
                ]
                self._results.servers["raw"] = servers.raw().title
                sizes = self._options.payload_bytes
                sweeps.sweep_payload(folder / "payload", swept, self._measurer, loads, rounds, sizes)
            if "models" in self._options.parts:
                self._tell("number of models")
                sweeps.sweep_models(folder / "models", swept, self._measurer, rounds)
            if "connections" in self._options.parts and (load := self._h2load_of("connections", _IDLE_SHAPE)):
                sweeps.sweep_connections(
                    folder / "connections", swept, self._measurer, load, rounds, self._results, open_files
                )
            if goodput.PART in self._options.parts:
                self._tell(goodput.PART)
                readers = swept.only(lambda kind: kind.reads_config)
                seconds = self._options.seconds
                goodput.measure_goodput(folder / "goodput", readers, self._measurer, self._results, rounds, seconds)
            if "density" in self._options.parts and (load := self._h2load_of("density", _IDLE_SHAPE)):
                many = starter.only(lambda kind: kind.name.startswith("toutates") or kind.name in own)
                counts = self._options.density_models
                place = folder / "density"
                density.measure_density(place, many, self._measurer, self._results, load, rounds, counts)
            if "memory" in self._options.parts and (load := self._h2load_of("memory", _MEMORY_SHAPE)):
                memory.watch_memory(
                    folder / "memory",
                    swept.only(lambda kind: kind.name != BASELINE),
                    self._measurer,
                    load,
                    self._options.memory_requests,
                    self._results,
                )

    def _measure_loads(self, name: str, folder: Path, starter: Starter) -> None:
        try:
            model = MODELS[name](folder / "models")
        except Unavailable as error:
            self._results.leave_out(name, str(error))
            return
        question = Question(model)
        loads = self._loads(self._options.loads_of(name))
        with starter.servers([model], folder) as started:
            for number in range(1, self._options.rounds + 1):
                for load in loads:
                    for server in in_turn([one for one in started if one.speaks(load.protocol)], number):
                        reason = server.kind.not_for_perf_analyzer
                        if reason and isinstance(load, PerfAnalyzer):
                            self._results.leave_out(f"{server.name} under perf_analyzer", reason)
                        else:
                            self._measurer.measure(server, Cell("loads", name, load.name), load, question, number)

    def _loads(self, names: Sequence[str]) -> list[Load]:
        loads: list[Load] = []
        for name in names:
            if shape := h2load_shape(name):
                if self._h2load:
                    loads.append(H2load(self._h2load, *shape))
            elif streams := stream_shape(name):
                loads.append(StreamLoad(*streams))
            elif (analysis := perf_analyzer_shape(name)) and self._perf_analyzer:
                tool = self._perf_analyzer
                loads.append(PerfAnalyzer(tool.program, tool.libraries, *analysis, self._options.seconds))
        return loads

    def _h2load_of(self, part: str, shape: tuple[int, int]) -> H2load | None:
        self._tell(part)
        if self._h2load is None:
            self._results.leave_out(part, "it needs h2load")
            return None
        return H2load(self._h2load, *shape)

    def _kinds(self) -> list[Kind]:
        """The servers that can take part."""
        python = sys.executable
        one, two = (["--processing-cores", str(workers)] for workers in (1, 2))
        free_threaded = "Toutates, free-threaded CPython 3.14t, {}, one executor"

        def on_314t(name: str, workers: str, flags: Sequence[str]) -> Kind:
            interpreter = self._environments.free_threaded(self._options.python314t)
            return self._versioned(
                servers.toutates(name, free_threaded.format(workers), interpreter, flags), interpreter
            )

        def grpc(name: str, title: str, module: str) -> Kind:
            return self._versioned(servers.grpc_baseline(name, title, module), python)

        def fastapi() -> Kind:
            interpreter = self._environments.fastapi()
            return self._versioned(servers.fastapi(interpreter), str(interpreter))

        def mlserver() -> Kind:
            interpreter = self._environments.mlserver()
            return self._versioned(servers.mlserver(interpreter), str(interpreter))

        def triton() -> Kind:
            interpreter = self._environments.triton()
            return self._versioned(servers.triton_server(interpreter), str(interpreter))

        def nghttpd() -> Kind:
            program = debian_program("nghttpd", "nghttp2-server")
            self._results.versions["nghttpd"] = machine.tool_version(program)
            return servers.nghttpd(program)

        title = f"Toutates, CPython {sys.version_info[0]}.{sys.version_info[1]}, one worker, one executor"
        makers: dict[str, Callable[[], Kind]] = {
            "toutates": lambda: self._versioned(servers.toutates("toutates", title, python, one), python),
            "toutates-3.14t": lambda: on_314t("toutates-3.14t", "one worker", one),
            "toutates-3.14t-2": lambda: on_314t("toutates-3.14t-2", "two workers", two),
            BASELINE: lambda: grpc(
                BASELINE, "the typical Python server: grpcio's asyncio server, no batching", "baseline_grpc_aio"
            ),
            "grpc-threads": lambda: grpc(
                "grpc-threads", "grpcio's synchronous server, ten threads, no batching", "baseline_grpc_threads"
            ),
            REST_BASELINE: fastapi,
            "mlserver": mlserver,
            "triton": triton,
            "nghttpd": nghttpd,
        }
        kinds = []
        for name, make in makers.items():
            if name in self._options.servers and (kind := self._found(name, make)):
                kinds.append(kind)
        for own in self._options.own_servers:
            own_title = f"Toutates under {own.python} {' '.join(own.flags)}".strip()
            kinds.append(self._versioned(servers.toutates(own.name, own_title, own.python, own.flags), own.python))
        return kinds

    def _versioned(self, kind: Kind, python: str) -> Kind:
        self._results.versions[kind.name] = machine.package_versions(python)
        return kind

    def _describe(self) -> None:
        self._results.machine = machine.describe_machine()
        self._results.options = self._options.as_json()
        self._results.versions["checkout"] = machine.checkout()
        if self._h2load:
            self._results.versions["h2load"] = machine.tool_version(self._h2load)
        if self._perf_analyzer:
            self._results.versions["perf_analyzer"] = self._perf_analyzer.version

    def _found(self, what: str, find: Callable[[], _Found]) -> _Found | None:
        """What ``find`` finds; where it does not, a line says why, here and in the report."""
        try:
            return find()
        except Unavailable as error:
            self._results.leave_out(what, str(error))
            print(f"without {what}: {error}", file=sys.stderr, flush=True)
            return None

    @staticmethod
    def _tell(what: str) -> None:
        print(f"{what}:", file=sys.stderr, flush=True)
