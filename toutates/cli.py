"""The command line: ``toutates`` serves, ``toutates probe`` checks a server's health.

Exit codes: 0 after a clean end, 1 after a failure, 2 for a command line or configuration that cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from toutates.errors import ConfigurationError
from toutates.h2grpc import Limits
from toutates.options import Options, parse_address

__all__ = ["EXIT_FAILURE", "EXIT_OK", "EXIT_USAGE", "main", "package_version", "parse_options"]

EXIT_OK, EXIT_FAILURE, EXIT_USAGE = 0, 1, 2

_PROVIDERS = {"auto": "auto", "cpu": "cpu", "cuda": "cuda", "tensorrt": "tensorrt", "trt": "tensorrt"}


def package_version() -> str:
    """The installed version of toutates; ``0`` when it runs from a folder that was never installed."""
    try:
        return version("toutates")
    except PackageNotFoundError:
        return "0"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the process's exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["probe"]:
            return _probe(arguments[1:])
        options = parse_options(arguments)
        # Imported only now: ONNX Runtime takes a while, and neither --help nor a mistake should.
        from toutates.server import run

        return run(options)
    except ConfigurationError as error:
        print(f"toutates: error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _probe(arguments: list[str]) -> int:
    from toutates.probe import probe

    parser = argparse.ArgumentParser(
        prog="toutates probe",
        description="Ask a gRPC server for its health (grpc.health.v1) and exit with 0 if it is serving, else 1.",
        allow_abbrev=False,
    )
    parser.add_argument("address", metavar="ADDR", help="HOST:PORT, such as 127.0.0.1:8001")
    parser.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS", help="give up after (default: 3)")
    parsed = parser.parse_args(arguments)
    healthy, text = probe(parse_address(parsed.address, "ADDR"), parsed.timeout)
    print(text, file=sys.stdout if healthy else sys.stderr)
    return EXIT_OK if healthy else EXIT_FAILURE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="toutates",
        description="Serve the ONNX models of a repository to Triton gRPC clients.",
        epilog="'toutates probe ADDR' checks a running server's health. Exit codes: 0 clean end, 1 failure, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"toutates {package_version()}")
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="(default: info)"
    )

    models = parser.add_argument_group("models")
    models.add_argument("--model-repository", required=True, metavar="DIR", help="folder of MODEL/VERSION/model.onnx")
    models.add_argument("--load-models", metavar="NAMES", help="comma-separated models to load (default: all)")

    ort = parser.add_argument_group("ONNX Runtime")
    ort.add_argument(
        "--execution-providers",
        default="auto",
        metavar="LIST",
        help="comma-separated, by priority: cpu, cuda, tensorrt (or trt). auto takes cuda where this ONNX Runtime "
        "offers it, else cpu (default: auto)",
    )
    ort.add_argument("--custom-op-libraries", metavar="PATHS", help="comma-separated shared libraries of custom ops")
    ort.add_argument("--trt-op-types-to-exclude", default="", metavar="OPS", help="ops TensorRT leaves to others")
    ort.add_argument("--trt-min-subgraph-size", type=_positive, metavar="N", help="smallest subgraph for TensorRT")
    ort.add_argument(
        "--ort-intra-threads", type=_positive, default=1, metavar="N", help="threads inside an operator (default: 1)"
    )
    ort.add_argument(
        "--ort-inter-threads", type=_positive, default=1, metavar="N", help="threads across operators (default: 1)"
    )

    grpc = parser.add_argument_group("gRPC")
    grpc.add_argument("--grpc-addr", default="0.0.0.0:8001", metavar="ADDR", help="(default: 0.0.0.0:8001)")
    grpc.add_argument(
        "--processing-cores",
        type=_positive,
        default=1,
        metavar="N",
        help="worker threads, each with its own connections; more than one pays on free-threaded Python (default: 1)",
    )
    grpc.add_argument("--max-concurrent-connections", type=_positive, default=100_000, metavar="N", help="(default: 100000)")
    grpc.add_argument(
        "--max-concurrent-streams", type=_positive, default=100_000, metavar="N", help="per connection (default: 100000)"
    )
    grpc.add_argument(
        "--max-frame-size", type=_positive, default=32_768, metavar="BYTES", help="16384 to 16777215 (default: 32768)"
    )
    grpc.add_argument(
        "--max-message-size", type=_positive, default=2**31 - 1, metavar="BYTES", help="of a request (default: 2147483647)"
    )
    grpc.add_argument(
        "--grpc-compression",
        default="none",
        choices=["none", "gzip", "deflate"],
        help="compress inference responses for clients that accept it (default: none)",
    )
    grpc.add_argument("--server-id", default="triton", metavar="NAME", help="name in ServerMetadata (default: triton)")
    grpc.add_argument(
        "--shutdown-grace",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="time for calls under way to end after SIGTERM (default: 30)",
    )
    for flag in ("--sqpoll-enabled", "--sqpoll-idle-ms"):
        parser.add_argument(flag, nargs="?", const=True, help=argparse.SUPPRESS)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 to 86400")
    return value


def parse_options(arguments: Sequence[str]) -> Options:
    """Options from flags. Prints usage and exits with 2 for flags that argparse refuses.

    Raises:
        ConfigurationError: a flag's value cannot be used.
    """
    flags = _parser().parse_args(arguments)
    if flags.sqpoll_enabled is not None or flags.sqpoll_idle_ms is not None:
        raise ConfigurationError(
            "kernel polling threads belong to io_uring, which this server does not use",
            key="--sqpoll-enabled",
            remedy="leave the --sqpoll flags out",
        )
    try:
        limits = Limits(
            max_concurrent_streams=flags.max_concurrent_streams,
            max_frame_size=flags.max_frame_size,
            max_message_size=flags.max_message_size,
        )
    except ValueError as error:
        name, _, problem = str(error).partition(" ")
        raise ConfigurationError(problem, key="--" + name.replace("_", "-")) from None
    return Options(
        model_repository=Path(flags.model_repository),
        load_models=_names(flags.load_models, "--load-models"),
        execution_providers=_providers(flags.execution_providers),
        custom_op_libraries=_libraries(flags.custom_op_libraries),
        trt_op_types_to_exclude=flags.trt_op_types_to_exclude,
        trt_min_subgraph_size=flags.trt_min_subgraph_size,
        ort_intra_threads=flags.ort_intra_threads,
        ort_inter_threads=flags.ort_inter_threads,
        grpc_addr=parse_address(flags.grpc_addr, "--grpc-addr"),
        processing_cores=flags.processing_cores,
        max_concurrent_connections=flags.max_concurrent_connections,
        limits=limits,
        grpc_compression="" if flags.grpc_compression == "none" else flags.grpc_compression,
        server_id=flags.server_id,
        shutdown_grace_s=flags.shutdown_grace,
        log_level=flags.log_level,
    )


def _names(text: str | None, flag: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ConfigurationError("has an empty name", key=flag, value=text, remedy="separate names by single commas")
    return names


def _providers(text: str) -> tuple[str, ...]:
    names = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in names if name not in _PROVIDERS]
    if unknown:
        raise ConfigurationError(
            "unknown execution provider",
            key="--execution-providers",
            value=unknown[0],
            remedy="choose from auto, cpu, cuda, tensorrt",
        )
    if "auto" in names and len(names) > 1:
        raise ConfigurationError(
            "auto stands alone", key="--execution-providers", value=text, remedy="write auto, or the list you want"
        )
    return tuple(dict.fromkeys(_PROVIDERS[name] for name in names))


def _libraries(text: str | None) -> tuple[Path, ...]:
    paths = tuple(Path(name) for name in _names(text, "--custom-op-libraries") or ())
    for path in paths:
        if not path.is_file():
            raise ConfigurationError(
                "there is no such file", key="--custom-op-libraries", value=str(path), remedy="correct the path"
            )
    return paths
