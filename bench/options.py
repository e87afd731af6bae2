"""The options of a run."""

from __future__ import annotations

import argparse
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.models import MODELS, ROOT
from bench.protocols import GRPC

__all__ = [
    "BASELINE",
    "DENSITY_MODELS",
    "LOADS",
    "PARTS",
    "PAYLOAD_BYTES",
    "REDUCED_LOADS",
    "REST_BASELINE",
    "SERVERS",
    "Options",
    "OwnServer",
    "h2load_shape",
    "perf_analyzer_shape",
    "run_parser",
    "stream_shape",
]

#: What every server's CPU is compared with, and over REST.
BASELINE, REST_BASELINE = "grpc.aio", "fastapi"
SERVERS = (
    *("toutates", "toutates-3.14t", "toutates-3.14t-2", BASELINE, "grpc-threads"),
    *(REST_BASELINE, "mlserver", "triton", "nghttpd"),
)
#: h2load's as connections x streams; over REST, which is HTTP/1.1, with the form of the tensors before it;
#: perf_analyzer's as pa and the requests under way at once, -own where each client object has a connection to itself.
LOADS = (
    *("1x64", "16x1", "64x1", "16x8", "1x1", "pa1", "pa16", "pa16-own", "pa64", "pa64-own"),
    "stream16x8",
    *("binary1x1", "binary16x1", "binary64x1", "json1x1", "json16x1", "json64x1"),
)
#: For the models that take longer than a request.
REDUCED_LOADS = ("16x1", "1x1", "pa16")
#: For the model that is there for the size of its requests.
IMAGE_LOADS = ("16x1", "binary16x1", "json16x1")
PARTS = ("loads", "text", "payload", "models", "connections", "goodput", "density", "memory")
#: Models of the servers of the part density; the second where it is to be quick.
DENSITY_MODELS, _QUICK_DENSITY = (1, 100, 1_000, 10_000), (1, 100, 1_000)
#: Bytes of the requests, or the answers, of the part payload; 602,112 are an image of 224 x 224 x 3.
PAYLOAD_BYTES = (256, 4096, 65_536, 602_112, 1_048_576, 10_485_760, 104_857_600)

_PLACES = ("python314t", "environments", "results")
_QUICK_SERVERS = ("toutates", BASELINE, "nghttpd")
_QUICK_LOADS = ("1x64", "16x1")
_H2LOAD_NAME = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,3})|(binary|json)([1-9]\d{0,3})x1")
_STREAM_NAME = re.compile(r"stream([1-9]\d{0,3})x([1-9]\d{0,3})")
_PERF_ANALYZER_NAME = re.compile(r"pa([1-9]\d{0,3})(-own)?")


@dataclass(frozen=True, slots=True)
class OwnServer:
    """Toutates under an interpreter and with flags of the caller's choice."""

    name: str
    python: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """What a run does.

    Attributes:
        servers: names out of ``SERVERS``.
        own_servers: beside them.
        models, parts: names out of ``MODELS`` and ``PARTS``.
        loads: names of loads; None for those that each model has.
        rounds: how often each server is loaded in each way.
        seconds: length of one load, roughly.
        memory_requests: after so many, and twice as many, memory is looked at.
        payload_bytes: sizes of the sweep over them.
        density_models: numbers of models of the part density.
        python314t: a free-threaded interpreter, or None to look for one.
        environments: folder of the virtual environments.
        results: folder of the results.
        name: of the results' files.
    """

    servers: tuple[str, ...]
    own_servers: tuple[OwnServer, ...]
    models: tuple[str, ...]
    parts: tuple[str, ...]
    loads: tuple[str, ...] | None
    rounds: int
    seconds: float
    memory_requests: int
    payload_bytes: tuple[int, ...]
    density_models: tuple[int, ...]
    python314t: str | None
    environments: Path
    results: Path
    name: str

    def loads_of(self, model: str) -> tuple[str, ...]:
        """The names of the loads that a model gets."""
        if self.loads is not None:
            return self.loads
        if model == "image":
            return IMAGE_LOADS
        return LOADS if model == next(iter(MODELS)) else REDUCED_LOADS

    def as_json(self) -> dict[str, Any]:
        """What was chosen, without the places on this machine."""
        return {key: value for key, value in asdict(self).items() if key not in _PLACES}

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Options:
        """Options from the command line; a mistake in it ends the process with status 2."""
        parser = run_parser()
        given = parser.parse_args(arguments)
        quick = given.quick
        own = []
        for entry in given.server:
            name, equals, command = entry.partition("=")
            if not (name and equals and command.strip()):
                parser.error(f"--server {entry!r}: expected NAME=PYTHON [FLAGS]")
            python, *flags = shlex.split(command)
            own.append(OwnServer(name, python, tuple(flags)))
        servers = given.servers or (_QUICK_SERVERS if quick else SERVERS)
        names = [*servers, *(server.name for server in own)]
        if len(names) != len(set(names)):
            parser.error("servers need names, each its own")
        if given.rounds is not None and given.rounds < 1:
            parser.error("--rounds must be at least 1")
        if given.seconds <= 0 or given.memory_requests < 1:
            parser.error("--seconds and --memory-requests must be positive")
        return cls(
            servers=tuple(servers),
            own_servers=tuple(own),
            models=tuple(given.models or (["mlp"] if quick else MODELS)),
            parts=tuple(given.parts or (["loads"] if quick else PARTS)),
            loads=tuple(given.loads) if given.loads else _QUICK_LOADS if quick else None,
            rounds=given.rounds or (2 if quick else 3),
            seconds=given.seconds,
            memory_requests=given.memory_requests,
            payload_bytes=tuple(given.payload_bytes),
            density_models=tuple(given.density_models or (_QUICK_DENSITY if quick else DENSITY_MODELS)),
            python314t=given.python314t,
            environments=given.environments,
            results=given.results,
            name=given.name,
        )


def h2load_shape(load: str) -> tuple[int, int, str] | None:
    """Connections and streams of a load of h2load, and its protocol; None for another's."""
    match = _H2LOAD_NAME.fullmatch(load)
    if match is None:
        return None
    return (int(match[1]), int(match[2]), GRPC) if match[1] else (int(match[4]), 1, match[3])


def stream_shape(load: str) -> tuple[int, int] | None:
    """Streams, and messages under way on each, of a load of streams; None for another's."""
    match = _STREAM_NAME.fullmatch(load)
    return (int(match[1]), int(match[2])) if match else None


def perf_analyzer_shape(load: str) -> tuple[int, bool] | None:
    """Concurrency of a load of perf_analyzer, and whether clients have connections of their own; None for another's."""
    match = _PERF_ANALYZER_NAME.fullmatch(load)
    return (int(match[1]), match[2] is not None) if match else None


def run_parser() -> argparse.ArgumentParser:
    """The parser of ``python -m bench`` without a subcommand."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure what a request costs Toutates, beside other servers.",
        epilog="'python -m bench report FILE' puts the figures of a run into docs/measurements.md. Exit status: 0 all "
        "that took part has figures, 1 some load failed or nothing could be measured, 2 an option cannot be used, 130 "
        "interrupted.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"two rounds of {', '.join(_QUICK_LOADS)} with the MLP, for {', '.join(_QUICK_SERVERS)}",
    )
    parser.add_argument("--servers", type=_names(SERVERS), metavar="NAMES", help=f"of {', '.join(SERVERS)}")
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="NAME=PYTHON [FLAGS]",
        help="add Toutates under another interpreter or with other flags; may be repeated",
    )
    parser.add_argument("--models", type=_names(MODELS), metavar="NAMES", help=f"of {', '.join(MODELS)}")
    parser.add_argument(
        "--loads",
        type=_loads,
        metavar="NAMES",
        help=f"CONNECTIONSxSTREAMS (h2load), binaryNx1 or jsonNx1 (h2load over REST), paN or "
        f"paN-own (perf_analyzer); usually {', '.join(LOADS)} for the MLP, {', '.join(IMAGE_LOADS)} for the image, "
        f"{', '.join(REDUCED_LOADS)} for the other models",
    )
    parser.add_argument("--parts", type=_names(PARTS), metavar="NAMES", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help="times each server is loaded in each way (3; --quick: 2)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one load, roughly (%(default)s)")
    parser.add_argument(
        "--memory-requests",
        type=int,
        default=1_000_000,
        metavar="N",
        help="look at memory after N and 2N requests (%(default)s)",
    )
    parser.add_argument(
        "--payload-bytes",
        type=lambda text: [4 * max(2, int(size) // 4) for size in text.split(",")],
        default=PAYLOAD_BYTES,
        metavar="SIZES",
        help=f"sizes of the part payload ({','.join(map(str, PAYLOAD_BYTES))})",
    )
    parser.add_argument(
        "--density-models",
        type=lambda text: [max(1, int(count)) for count in text.split(",")],
        metavar="COUNTS",
        help=f"numbers of models of the part density ({','.join(map(str, DENSITY_MODELS))})",
    )
    parser.add_argument("--python314t", metavar="PATH", help="free-threaded Python; else PYTHON314T, .venv-314t, PATH")
    parser.add_argument(
        "--environments", type=Path, default=ROOT / ".bench-venvs", metavar="DIR", help="virtual environments"
    )
    parser.add_argument(
        "--results", type=Path, default=ROOT / "bench" / "results", metavar="DIR", help="where NAME.json goes"
    )
    parser.add_argument("--name", default=time.strftime("%Y-%m-%d-%H%M%S"), help="of the results (the time)")
    return parser


def _names(known: Sequence[str] | dict[str, Any]) -> Any:
    """A parser of comma-separated names, which keeps their usual order."""

    def parse(text: str) -> list[str]:
        given = [name.strip() for name in text.split(",")]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(map(repr, unknown))}; known are {', '.join(known)}")
        return [name for name in known if name in given]

    return parse


def _loads(text: str) -> list[str]:
    given = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in given:
        if not any((h2load_shape(name), perf_analyzer_shape(name), stream_shape(name))):
            raise argparse.ArgumentTypeError(
                f"{name!r} is neither like 16x1 or json16x1 nor like pa16 or pa16-own nor like stream16x8"
            )
    return given
