"""The flags of ``toutates``: their names, their values' form, and what ``--help`` says of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

from toutates.infer.tracing.configuration import LEVEL_NAMES
from toutates.repositories.control.modes import CONTROL_MODES
from toutates.server.options import DEFAULT_CACHE_SIZE
from toutates.system.errors import ConfigurationError
from toutates.system.logs.levels import parse_levels
from toutates.system.version import package_version

__all__ = [
    "COMMANDS",
    "Parser",
    "add_custom_op_libraries",
    "add_execution_providers",
    "add_s3",
    "positive",
    "seconds",
    "server_parser",
]


#: Of subcommands, each of which has a parser of its own.
COMMANDS: Final = ("probe", "check", "config")

#: How like a name has to be to be suggested, as ``difflib`` counts it.
_LIKENESS: Final = 0.7


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, like every other wrong setting, instead of under the whole usage.

    Attributes:
        commands: names of subcommands, one of which an unknown argument may have meant.
    """

    commands: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(message, remedy=f"see '{self.prog} --help'")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """As ever, but what is unknown is shown without its value: it may be a secret under a misspelt flag."""
        flags: argparse.Namespace
        flags, unknown = self.parse_known_args(args, namespace)
        if unknown:
            names = [argument.partition("=")[0] for argument in unknown]
            raise ConfigurationError(f"unrecognized arguments: {' '.join(names)}", remedy=self._remedy(names))
        return flags

    def _remedy(self, names: Sequence[str]) -> str:
        """What may have been meant, by the first name that is like one that there is."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for name in names:
            near = get_close_matches(name, known if name.startswith("-") else self.commands, n=1, cutoff=_LIKENESS)
            if near:
                return f"did you mean '{near[0]}'? See '{self.prog} --help'"
        if self.commands and not names[0].startswith("-"):
            return (
                f"name a repository by --model-repository; the commands are {', '.join(self.commands)}, "
                f"see '{self.prog} --help'"
            )
        return f"see '{self.prog} --help'"


def server_parser() -> Parser:
    """The parser of the command line without a subcommand."""
    parser = Parser(
        prog="toutates",
        usage="toutates --model-repository DIR [options]\n       toutates probe ADDR [options]\n"
        "       toutates check REPOSITORY [options]\n       toutates config MODEL_DIR [options]",
        description="Serve the ONNX models of a repository to Triton's gRPC clients.",
        epilog="'toutates probe' checks a running server's health, 'toutates check' a repository, and "
        "'toutates config' shows a model's configuration; see their --help. Exit codes: 0 clean end, 1 failure, 2 a "
        "flag, the repository or the installation cannot be used.",
        allow_abbrev=False,
    )
    parser.commands = COMMANDS
    parser.add_argument("--version", action="version", version=f"toutates {package_version()}")
    parser.add_argument(
        "--log-level",
        type=_levels,
        default="info",
        metavar="LEVELS",
        help="debug, info, warning or error; comma-separated AREA=LEVEL for parts of the server, such as "
        "info,h2grpc=debug (default: info)",
    )
    parser.add_argument(
        "--log-format",
        default="text",
        choices=["text", "json"],
        metavar="FORMAT",
        help="text, or json: one object per line (default: text)",
    )
    parser.add_argument(
        "--access-log-rate",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="of inference requests that get a line in the log, such as 0.01; 1 for all (default: 0)",
    )

    models = parser.add_argument_group("models")
    models.add_argument(
        "--model-repository",
        action="append",
        metavar="DIR",
        help="folder of MODEL/VERSION/model.onnx, or s3://BUCKET/PREFIX; may be given several times (required, unless "
        "there is --s3-bucket)",
    )
    models.add_argument("--load-models", metavar="NAMES", help="comma-separated models to load (default: all)")
    models.add_argument(
        "--model-control-mode",
        default="none",
        choices=CONTROL_MODES,
        metavar="MODE",
        help="none loads at the start and never again, poll also what changes in the repositories, explicit what "
        "--load-model and RepositoryModelLoad ask for (default: none)",
    )
    models.add_argument(
        "--repository-poll-secs",
        type=positive,
        default=15,
        metavar="SECONDS",
        help="between two looks into the repositories, in the mode poll; in all modes between two questions to a "
        "repository that did not answer at the start (default: 15)",
    )
    models.add_argument(
        "--load-model",
        action="append",
        metavar="NAME",
        help="a model to load at the start in the mode explicit; may be given several times, '*' alone is all "
        "(default: none)",
    )
    models.add_argument(
        "--strict-readiness",
        type=_boolean,
        default=True,
        metavar="BOOL",
        help="whether the server is not ready while a model cannot be served (default: true)",
    )
    models.add_argument(
        "--exit-on-error",
        type=_boolean,
        default=False,
        metavar="BOOL",
        help="whether the server ends if a model cannot be loaded, or a repository cannot be read, at the start; "
        "otherwise it serves the others (default: false)",
    )

    s3 = parser.add_argument_group("models on S3")
    s3.add_argument("--s3-bucket", metavar="NAME", help="a repository in this bucket; like s3://NAME/PREFIX above")
    s3.add_argument("--s3-prefix", metavar="PREFIX", help="where in the bucket its models are (default: at the top)")
    add_s3(s3)
    s3.add_argument(
        "--model-cache-size",
        type=positive,
        default=DEFAULT_CACHE_SIZE,
        metavar="BYTES",
        help=f"it may have; what was used longest ago is removed first (default: {DEFAULT_CACHE_SIZE})",
    )

    ort = parser.add_argument_group("ONNX Runtime")
    add_execution_providers(ort)
    add_custom_op_libraries(ort)
    ort.add_argument(
        "--trt-op-types-to-exclude",
        default="",
        metavar="OPS",
        help="comma-separated operator types that TensorRT leaves to the other providers",
    )
    ort.add_argument(
        "--trt-min-subgraph-size", type=positive, metavar="N", help="nodes that a subgraph for TensorRT has at least"
    )
    ort.add_argument(
        "--ort-intra-threads",
        type=positive,
        default=1,
        metavar="N",
        help="threads inside one operator, per session; more than one pays for large models (default: 1)",
    )
    ort.add_argument(
        "--ort-inter-threads",
        type=positive,
        default=1,
        metavar="N",
        help="threads across operators, per session (default: 1)",
    )

    cores = parser.add_argument_group("cores")
    cores.add_argument(
        "--processing-cores",
        type=positive,
        metavar="N",
        help="worker threads, each with connections of its own; more than one pays on free-threaded Python (default: "
        "1 with the GIL; without it one per CPU that the process may use, less those of the other roles)",
    )
    cores.add_argument(
        "--executor-cores",
        type=positive,
        default=1,
        metavar="N",
        help="models loaded at the same time; with --cpu-pinning also the cores that executors share (default: 1)",
    )
    cores.add_argument(
        "--cpu-pinning",
        nargs="?",
        const="all",
        metavar="CPUS",
        help="pin every thread to a core of those that the process may use, or of CPUS, such as 0-3,8 (default: off)",
    )

    grpc = parser.add_argument_group("gRPC")
    grpc.add_argument(
        "--grpc-addr", default="0.0.0.0:8001", metavar="ADDR", help="HOST:PORT to listen on (default: 0.0.0.0:8001)"
    )
    grpc.add_argument(
        "--max-concurrent-connections",
        type=positive,
        default=100_000,
        metavar="N",
        help="more are turned away (default: 100000)",
    )
    grpc.add_argument(
        "--max-concurrent-streams",
        type=positive,
        default=100_000,
        metavar="N",
        help="calls at once per connection (default: 100000)",
    )
    grpc.add_argument(
        "--max-frame-size",
        type=positive,
        default=32_768,
        metavar="BYTES",
        help="HTTP/2 frames that clients may send, 16384 to 16777215 (default: 32768)",
    )
    grpc.add_argument(
        "--max-message-size",
        type=positive,
        default=2**31 - 1,
        metavar="BYTES",
        help="requests that clients may send (default: 2147483647)",
    )
    grpc.add_argument(
        "--max-decompressed-size",
        type=positive,
        default=67_108_864,
        metavar="BYTES",
        help="what a compressed request may become (default: 67108864)",
    )
    grpc.add_argument(
        "--max-connection-buffered-bytes",
        type=positive,
        default=2**31 - 1,
        metavar="BYTES",
        help="requests under way that one connection may have held (default: 2147483647)",
    )
    grpc.add_argument(
        "--max-buffered-bytes",
        type=positive,
        metavar="BYTES",
        help="requests under way and unread responses that the server holds for all its clients (default: half of the "
        "memory that the process may use)",
    )
    grpc.add_argument(
        "--max-resets-per-second",
        type=positive,
        default=200,
        metavar="N",
        help="calls that a connection may cancel in the long run beyond one of two; five times as many at once "
        "(default: 200)",
    )
    grpc.add_argument(
        "--max-inflight-requests",
        type=positive,
        metavar="N",
        help="inference requests accepted and not answered yet, of all models; more are refused (default: no limit)",
    )
    grpc.add_argument(
        "--grpc-restricted-protocol",
        action="append",
        metavar="PROTOCOLS:KEY=VALUE",
        help="only calls with the metadata triton-grpc-protocol-KEY: VALUE may use PROTOCOLS, comma-separated of "
        "health, metadata, inference, shared-memory, model-config, model-repository, statistics, trace, logging; "
        "may be given several times (default: everybody may)",
    )
    grpc.add_argument(
        "--grpc-compression",
        default="none",
        choices=["none", "gzip", "deflate"],
        metavar="NAME",
        help="none, gzip or deflate: compress inference responses for clients that accept it (default: none)",
    )
    grpc.add_argument("--server-id", default="triton", metavar="NAME", help="name in ServerMetadata (default: triton)")
    grpc.add_argument(
        "--shutdown-grace",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="time for calls under way to end after SIGTERM; a second signal ends it (default: 30)",
    )

    times = parser.add_argument_group("times of a connection, in seconds; 0 is never")
    times.add_argument(
        "--handshake-timeout",
        type=seconds,
        default=20.0,
        metavar="SECONDS",
        help="from accepting it to the end of the HTTP/2 handshake (default: 20)",
    )
    times.add_argument(
        "--stall-timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="without progress of a request that has begun, or of responses that wait to be read (default: 60)",
    )
    times.add_argument(
        "--max-connection-idle",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="without a call, until the client is told to leave (default: 0)",
    )
    times.add_argument(
        "--max-connection-age",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="until the client is told to leave, 10%% more or less; its calls may end (default: 0)",
    )
    times.add_argument(
        "--max-connection-age-grace",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="for calls under way, once a client was told to leave (default: 0)",
    )
    times.add_argument(
        "--keepalive-time",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="of silence, until the client is asked whether it is there (default: 300)",
    )
    times.add_argument(
        "--keepalive-timeout",
        type=seconds,
        default=20.0,
        metavar="SECONDS",
        help="for its answer; then the connection is closed (default: 20)",
    )

    tls = parser.add_argument_group("TLS", "SIGHUP has the files read again, without dropping a connection.")
    tls.add_argument(
        "--tls-cert", metavar="FILE", help="the server's certificate and its intermediates, PEM (default: no TLS)"
    )
    tls.add_argument("--tls-key", metavar="FILE", help="the certificate's private key, PEM, not encrypted")
    tls.add_argument(
        "--tls-client-ca",
        metavar="FILE",
        help="authorities, PEM: only clients with a certificate of theirs may connect (default: all may)",
    )
    traces = parser.add_argument_group("traces", "TraceSetting changes all but the endpoint while the server runs.")
    traces.add_argument(
        "--trace-endpoint",
        metavar="URL",
        help="of an OpenTelemetry collector that takes OTLP over HTTP, such as http://localhost:4318 (default: what "
        "OTEL_EXPORTER_OTLP_ENDPOINT says). Needs toutates[otel]",
    )
    traces.add_argument(
        "--trace-level",
        action="append",
        choices=LEVEL_NAMES,
        metavar="LEVEL",
        help="OFF, TIMESTAMPS or TENSORS; may be given several times (default: TIMESTAMPS if another of these flags is "
        "given, else OFF)",
    )
    traces.add_argument(
        "--trace-rate",
        type=_from(0, 2**32 - 1),
        metavar="N",
        help="trace one of N requests, and those whose callers record the trace; 0 traces these alone (default: 1000)",
    )
    traces.add_argument(
        "--trace-count",
        type=_from(-1, 2**31 - 1),
        metavar="N",
        help="end with so many requests traced by the rate; -1 is never (default: -1)",
    )
    watching = parser.add_argument_group("watching the server")
    watching.add_argument(
        "--metrics-addr",
        default="0.0.0.0:9090",
        metavar="ADDR",
        help="HOST:PORT of the HTTP side: metrics, the status page and probes; off for none (default: 0.0.0.0:9090)",
    )
    watching.add_argument(
        "--debug-endpoints",
        action="store_true",
        help="let others than this machine use /debug of the HTTP side (default: false)",
    )
    for flag in ("--sqpoll-enabled", "--sqpoll-idle-ms"):
        parser.add_argument(flag, nargs="?", const=True, help=argparse.SUPPRESS)
    return parser


def add_custom_op_libraries(parser: argparse._ActionsContainer) -> None:
    """The flag that every command which reads models has."""
    parser.add_argument(
        "--custom-op-libraries", metavar="PATHS", help="comma-separated shared libraries of custom operators"
    )


def add_execution_providers(parser: argparse._ActionsContainer) -> None:
    """The flag that says on what models run."""
    parser.add_argument(
        "--execution-providers",
        default="auto",
        metavar="LIST",
        help="comma-separated, by priority: cpu, cuda, tensorrt (or trt). auto takes cuda where this onnxruntime and "
        "this machine have it, else cpu (default: auto)",
    )


def add_s3(parser: argparse._ActionsContainer) -> None:
    """The flags of every command that reads repositories on S3."""
    parser.add_argument(
        "--s3-endpoint", metavar="URL", help="the S3 service of all repositories on S3 (default: boto3's, which is AWS)"
    )
    parser.add_argument("--s3-region", metavar="NAME", help="of the buckets (default: boto3's)")
    parser.add_argument(
        "--model-cache-dir",
        metavar="DIR",
        help="for what was downloaded; servers may share it (default: $XDG_CACHE_HOME/toutates or ~/.cache/toutates)",
    )


def positive(text: str) -> int:
    """A whole number from 1 up, from the command line.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    # Of ASCII digits, and not so many that int() itself refuses.
    if text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")


def _levels(text: str) -> str:
    try:
        parse_levels(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if 0 <= value <= 1:
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")


def _from(least: int, most: int) -> Callable[[str], int]:
    """The type of a flag that takes the whole numbers from ``least`` to ``most``."""

    def number(text: str) -> int:
        # Of ASCII digits, and not so many that int() itself refuses.
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 19 and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")

    return number


def _boolean(text: str) -> bool:
    # As Triton reads them.
    word = text.lower()
    if word in ("true", "1", "on"):
        return True
    if word in ("false", "0", "off"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def seconds(text: str) -> float:
    """A length of time from the command line.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1
    if 0 <= value <= 86_400:
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 86400")
