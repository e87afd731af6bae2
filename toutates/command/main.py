"""The command line: ``toutates`` serves, ``toutates probe`` checks a server's health, ``toutates check`` a repository,
and ``toutates config`` shows what a model's configuration comes to.

Exit codes: 0 after a clean end, 1 after a failure, 2 for a command line or configuration that cannot be used.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from toutates.api.restrictions import parse_restrictions
from toutates.backends.onnx.provider_names import PROVIDERS
from toutates.command.flags import (
    COMMANDS,
    Parser,
    add_custom_op_libraries,
    add_execution_providers,
    add_s3,
    positive,
    seconds,
    server_parser,
)
from toutates.h2grpc import Allowance, Limits
from toutates.infer.tracing.configuration import read_trace_options
from toutates.repositories.specification import read_specifications
from toutates.server.options import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Options, TlsFiles
from toutates.system.address import parse_address
from toutates.system.errors import ConfigurationError, ModelLoadError, RepositoryError, ToutatesError
from toutates.system.interpreter import watch_gil
from toutates.system.logs.levels import LogLevels
from toutates.system.standard_streams import standard_streams
from toutates.system.topology import allowed_cpus, format_cpu_list, parse_cpu_list

__all__ = ["main", "parse_options"]

_PROVIDERS = {"trt": "tensorrt"} | {name: name for name in ("auto", *PROVIDERS)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the process's exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["probe"]:
            return _probe(arguments[1:])
        if arguments[:1] == ["check"]:
            return _check(arguments[1:])
        if arguments[:1] == ["config"]:
            return _config(arguments[1:])
        return _serve(parse_options(arguments))
    except ConfigurationError as error:
        _print_error(error, arguments)
        return EXIT_USAGE
    except KeyboardInterrupt:  # before the server listens to signals, or while it probes
        return EXIT_FAILURE


def _print_error(error: ToutatesError, arguments: Sequence[str] = ()) -> None:
    """A line to standard error for each problem: an object for a server whose log is JSON."""
    lines = str(error).splitlines()
    if arguments[:1] and arguments[0] not in COMMANDS and _wants_json(arguments):
        from toutates.system.logs.rendering import LogFormatter

        formatter = LogFormatter("json", LogLevels)
        for line in lines:
            said = formatter.of_fields(time_s=time.time(), level=logging.ERROR, area="server", event=line)
            print(said, end="", file=sys.stderr)
        return
    for line in lines:
        print(f"toutates: error: {line}", file=sys.stderr)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether --log-format says so, in a command line that may be wrong elsewhere; the last one holds."""
    flag, wanted = "--log-format", ""
    for number, argument in enumerate(arguments):
        if argument == flag:
            wanted = next(iter(arguments[number + 1 : number + 2]), "")
        elif argument.startswith(f"{flag}="):
            wanted = argument.partition("=")[2]
    return wanted == "json"


def _serve(options: Options) -> int:
    watch_gil()  # before the extension modules below
    _prepare_onnxruntime()
    from toutates.server.server import run

    with standard_streams():
        return run(options)


def _prepare_onnxruntime() -> None:
    """Import it: only now, because it takes a while, and neither --help nor a mistake should."""
    # ONNX Runtime's builds for Linux report models and runs to Microsoft, in threads of their own, unless told not to.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    _require_onnxruntime()


def _require_onnxruntime() -> None:
    """ONNX Runtime is no plain dependency, because its two packages exclude each other.

    Raises:
        ConfigurationError: neither is installed, or not so that it works.
    """
    remedy = "install toutates[cpu], or toutates[gpu] for the CUDA and TensorRT providers"
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise ConfigurationError(f"onnxruntime cannot be imported: {error}", remedy=remedy) from error
        raise ConfigurationError("onnxruntime is not installed", remedy=remedy) from None
    except ImportError as error:
        raise ConfigurationError(f"onnxruntime cannot be imported: {error}", remedy=remedy) from error
    if not hasattr(onnxruntime, "InferenceSession"):
        raise ConfigurationError(
            "only remains of onnxruntime are installed, as uninstalling one of its two packages leaves of the other",
            remedy="uninstall onnxruntime and onnxruntime-gpu, then " + remedy,
        )


def _probe(arguments: list[str]) -> int:
    from toutates.command.probe import Tls, probe
    from toutates.server.certificates import client_context

    parser = Parser(
        prog="toutates probe",
        description="Ask a gRPC server for its health (grpc.health.v1). Exit codes: 0 it is serving, 1 it is not or "
        "does not answer, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("address", metavar="ADDR", help="HOST:PORT, such as 127.0.0.1:8001")
    parser.add_argument(
        "--timeout", type=seconds, default=3.0, metavar="SECONDS", help="for the whole exchange (default: 3)"
    )
    parser.add_argument("--tls", action="store_true", help="speak TLS; the other --tls flags imply it")
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="authorities to trust, or the server's very certificate, PEM (default: those of the system)",
    )
    parser.add_argument("--tls-server-name", metavar="NAME", help="name in the certificate (default: ADDR's host)")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate to show to the server, PEM (default: none)")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, PEM, not encrypted")
    parsed = parser.parse_args(arguments)
    address = parse_address(parsed.address, "ADDR")
    ca, cert, key = (None if name is None else Path(name) for name in (parsed.tls_ca, parsed.tls_cert, parsed.tls_key))
    if (cert is None) is not (key is None):
        given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        raise ConfigurationError(
            f"needs {missing} too", key=given, value=str(cert or key), remedy=f"add {missing} FILE"
        )
    tls = None
    if parsed.tls or ca or cert or parsed.tls_server_name:
        tls = Tls(client_context(ca, cert, key), parsed.tls_server_name or address.host)
    healthy, text = probe(address, parsed.timeout, tls)
    print(text, file=sys.stdout if healthy else sys.stderr)
    return EXIT_OK if healthy else EXIT_FAILURE


def _check(arguments: list[str]) -> int:
    parser = Parser(
        prog="toutates check",
        description="Read every model and configuration of a repository, and print everything for which a server on "
        "this machine would refuse to serve it, one line each. Models are loaded on the CPU. Exit codes: 0 all is "
        "well, 1 something is wrong, 2 usage, or REPOSITORY is none.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "repository", metavar="REPOSITORY", help="folder of MODEL/VERSION/model.onnx, or s3://BUCKET/PREFIX"
    )
    add_execution_providers(parser)
    add_custom_op_libraries(parser)
    parser.add_argument(
        "--assume-gpu",
        action="store_true",
        help="do not look for the GPUs that models ask for: the server that they are for has them",
    )
    add_s3(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    parsed = parser.parse_args(arguments)
    [root] = read_specifications(
        [parsed.repository], endpoint=parsed.s3_endpoint, region=parsed.s3_region, flag="REPOSITORY"
    )
    options = Options(
        (root,),
        model_cache_dir=Path(parsed.model_cache_dir) if parsed.model_cache_dir else None,
        execution_providers=_providers(parsed.execution_providers),
        custom_op_libraries=_libraries(parsed.custom_op_libraries),
    )
    _prepare_onnxruntime()
    from toutates.command.check import check

    try:
        report = check(options, assume_gpu=parsed.assume_gpu)
    except RepositoryError as error:
        _print_error(error)
        return EXIT_FAILURE
    for line in report.facts:
        print(line)
    for line in report.warnings:
        print(f"warning: {line}")
    for line in report.problems:
        print(f"error: {line}")
    print(f"{len(report.problems)} errors, {len(report.warnings)} warnings")
    return EXIT_FAILURE if report.problems or (parsed.strict and report.warnings) else EXIT_OK


def _config(arguments: list[str]) -> int:
    parser = Parser(
        prog="toutates config",
        description="Print what the files and the graph of a model come to: the configuration that it is served with, "
        "complete. Exit codes: 0, 1 the model cannot be served, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="folder of VERSION/model.onnx")
    parser.add_argument("--version", type=positive, metavar="N", help="of the model (default: the newest served)")
    parser.add_argument(
        "--format",
        choices=["yaml", "pbtxt", "both"],
        default="both",
        metavar="FORMAT",
        help="yaml, pbtxt or both (default: both)",
    )
    add_custom_op_libraries(parser)
    parsed = parser.parse_args(arguments)
    model_dir = Path(parsed.model_dir)
    libraries = _libraries(parsed.custom_op_libraries)
    _prepare_onnxruntime()
    from toutates.command.config import effective_configuration, require_model_dir

    require_model_dir(model_dir)
    try:
        print(effective_configuration(model_dir, parsed.version, parsed.format, libraries), end="")
    except (ConfigurationError, ModelLoadError) as error:
        _print_error(error)
        return EXIT_FAILURE
    return EXIT_OK


def parse_options(arguments: Sequence[str]) -> Options:
    """Options from flags. ``--help`` and ``--version`` print and exit.

    Raises:
        ConfigurationError: a flag is unknown, or its value cannot be used.
    """
    flags = server_parser().parse_args(arguments)
    if flags.sqpoll_enabled is not None or flags.sqpoll_idle_ms is not None:
        raise ConfigurationError(
            "kernel polling threads belong to io_uring, which this server does not use",
            key="--sqpoll-enabled",
            remedy="leave the --sqpoll flags out",
        )
    return Options(
        model_repositories=read_specifications(
            flags.model_repository or (),
            endpoint=flags.s3_endpoint,
            bucket=flags.s3_bucket,
            prefix=flags.s3_prefix,
            region=flags.s3_region,
        ),
        model_cache_dir=Path(flags.model_cache_dir) if flags.model_cache_dir else None,
        model_cache_size=flags.model_cache_size,
        load_models=_models_to_load(flags),
        load_model=tuple(flags.load_model or ()),
        model_control_mode=flags.model_control_mode,
        repository_poll_s=flags.repository_poll_secs,
        strict_readiness=flags.strict_readiness,
        exit_on_error=flags.exit_on_error,
        execution_providers=_providers(flags.execution_providers),
        custom_op_libraries=_libraries(flags.custom_op_libraries),
        trt_op_types_to_exclude=flags.trt_op_types_to_exclude,
        trt_min_subgraph_size=flags.trt_min_subgraph_size,
        ort_intra_threads=flags.ort_intra_threads,
        ort_inter_threads=flags.ort_inter_threads,
        grpc_addr=parse_address(flags.grpc_addr, "--grpc-addr"),
        processing_cores=flags.processing_cores,
        executor_cores=flags.executor_cores,
        cpu_pinning=_cpus(flags.cpu_pinning, "--cpu-pinning"),
        max_concurrent_connections=flags.max_concurrent_connections,
        max_buffered_bytes=flags.max_buffered_bytes,
        limits=_limits(flags),
        restricted_protocols=parse_restrictions(flags.grpc_restricted_protocol or ()),
        max_inflight_requests=flags.max_inflight_requests,
        grpc_compression="" if flags.grpc_compression == "none" else flags.grpc_compression,
        tls=_tls(flags.tls_cert, flags.tls_key, flags.tls_client_ca),
        tracing=read_trace_options(
            os.environ,
            endpoint=flags.trace_endpoint,
            levels=flags.trace_level or (),
            rate=flags.trace_rate,
            count=flags.trace_count,
        ),
        metrics_addr=None if flags.metrics_addr == "off" else parse_address(flags.metrics_addr, "--metrics-addr"),
        debug_endpoints=flags.debug_endpoints,
        server_id=flags.server_id,
        shutdown_grace_s=flags.shutdown_grace,
        log_level=flags.log_level,
        log_format=flags.log_format,
        access_log_rate=flags.access_log_rate,
    )


def _limits(flags: argparse.Namespace) -> Limits:
    try:
        return Limits(
            max_concurrent_streams=flags.max_concurrent_streams,
            max_frame_size=flags.max_frame_size,
            max_message_size=flags.max_message_size,
            max_decompressed_size=flags.max_decompressed_size,
            max_buffered_bytes=flags.max_connection_buffered_bytes,
            resets=Allowance(5 * flags.max_resets_per_second, flags.max_resets_per_second, per_call=0.5),
            handshake_timeout_s=flags.handshake_timeout or math.inf,
            stall_timeout_s=flags.stall_timeout or math.inf,
            max_idle_s=flags.max_connection_idle or math.inf,
            max_age_s=flags.max_connection_age or math.inf,
            max_age_grace_s=flags.max_connection_age_grace or math.inf,
            keepalive_time_s=flags.keepalive_time or math.inf,
            keepalive_timeout_s=flags.keepalive_timeout or math.inf,
        )
    except ValueError as error:
        # "max_frame_size is 1, but must be ...": the flag is called like the field, all but a few
        name, _, problem = str(error).partition(" ")
        renamed = {"max_idle_s": "max_connection_idle", "max_age_s": "max_connection_age"}
        flag = renamed.get(name, name).removesuffix("_s")
        raise ConfigurationError(problem, key="--" + flag.replace("_", "-")) from None


def _models_to_load(flags: argparse.Namespace) -> tuple[str, ...] | None:
    """Names of the models to load at the start; None for all."""
    listed = _names(flags.load_models, "--load-models")
    if flags.model_control_mode != "explicit":
        if flags.load_model:
            raise ConfigurationError(
                "is of use only with --model-control-mode explicit",
                key="--load-model",
                value=flags.load_model[0],
                remedy="add that flag, or name the models by --load-models",
            )
        return listed
    named: list[str] = flags.load_model or []
    if "" in named:
        raise ConfigurationError("is empty", key="--load-model", remedy="name a model, or write '*' for all")
    if "*" in named:
        if set(named) != {"*"} or listed is not None:
            raise ConfigurationError(
                "'*' is all models, and stands alone", key="--load-model", remedy="leave out the others, or it"
            )
        return None
    return tuple(dict.fromkeys((*(listed or ()), *named)))


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


def _tls(cert: str | None, key: str | None, client_ca: str | None) -> TlsFiles | None:
    given = {"--tls-cert": cert, "--tls-key": key, "--tls-client-ca": client_ca}
    needed = {"--tls-cert": "the server's certificate", "--tls-key": "the certificate's private key"}
    missing = [flag for flag in needed if given[flag] is None]
    if not any(given.values()) and len(missing) == len(needed):
        return None
    if missing:
        flag = next(flag for flag, value in given.items() if value is not None)
        remedy = " and ".join(f"{name} FILE, {needed[name]}" for name in missing)
        raise ConfigurationError(
            f"needs {' and '.join(missing)} too", key=flag, value=given[flag], remedy="add " + remedy
        )
    assert cert is not None
    assert key is not None
    return TlsFiles(Path(cert), Path(key), None if client_ca is None else Path(client_ca))


def _cpus(text: str | None, flag: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    if text == "all":  # which the flag alone means
        return ()
    allowed = allowed_cpus()
    remedy = f"name CPUs that the process may use, which are {format_cpu_list(allowed)}"
    try:
        cpus = parse_cpu_list(text)
    except ValueError as error:
        raise ConfigurationError(str(error), key=flag, value=text, remedy=remedy) from None
    if not cpus <= allowed:
        outside = format_cpu_list(cpus - allowed)
        raise ConfigurationError(f"the process may not use CPU {outside}", key=flag, value=text, remedy=remedy)
    return tuple(sorted(cpus))


def _libraries(text: str | None) -> tuple[Path, ...]:
    paths = tuple(Path(name) for name in _names(text, "--custom-op-libraries") or ())
    for path in paths:
        if not path.is_file():
            raise ConfigurationError(
                "there is no such file", key="--custom-op-libraries", value=str(path), remedy="correct the path"
            )
    return paths
