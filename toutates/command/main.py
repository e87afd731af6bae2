"""The command line: ``toutates`` serves, as ``toutates serve`` and ``tritonserver`` do; ``toutates probe`` checks a
server's health, ``toutates bench`` measures a server, ``toutates tune`` finds a model's best configuration,
``toutates check`` reads a repository, ``toutates config`` shows what a model's configuration comes to, and ``toutates
import`` makes a model of a folder of sentence-transformers or of an archive of TorchServe, ``toutates init`` writes a
repository to begin with, and ``toutates completion`` a script for a shell.

Exit codes: 0 after a clean end, 1 after a failure, 2 for a command line or configuration that cannot be used, 130 for a
command that was interrupted before it could say anything.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from toutates.command.flags import FLAGS, REFUSED
from toutates.command.interrupts import EXIT_INTERRUPTED, interrupts_end_at_once
from toutates.command.options import make_options, repositories
from toutates.command.parser import COMMANDS, SERVERS, Parser, add_flags, server_parser
from toutates.command.parsers import (
    check_parser,
    completion_parser,
    config_parser,
    import_parser,
    init_parser,
    probe_parser,
    proto_parser,
)
from toutates.command.serving import defaults_of_path, serving_path
from toutates.command.settings import Settings, read_settings, settings_of, table, text_of
from toutates.command.triton_translation import PROGRAM
from toutates.server.options import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Options
from toutates.system.address import parse_address
from toutates.system.early_signals import let_signals_go
from toutates.system.errors import ConfigurationError, ModelLoadError, RepositoryError, ToutatesError
from toutates.system.interpreter import watch_gil
from toutates.system.logs.levels import LogLevels
from toutates.system.poison import current
from toutates.system.standard_streams import standard_streams, write_anything
from toutates.system.text import one_line

__all__ = ["main", "parse_options", "prepare_onnxruntime", "tritonserver"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the process's exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    write_anything()
    if arguments and arguments[0] in COMMANDS:
        let_signals_go()
    try:
        if arguments[:1] == ["probe"]:
            return _probe(arguments[1:])
        if arguments[:1] in (["check"], ["config"]):
            _log_briefly()
        if arguments[:1] == ["check"]:
            return _check(arguments[1:])
        if arguments[:1] == ["config"]:
            return _config_show(arguments[2:]) if arguments[1:2] == ["show"] else _config(arguments[1:])
        if arguments[:1] == ["import"]:
            return _import(arguments[1:])
        if arguments[:1] == ["init"]:
            return _init(arguments[1:])
        if arguments[:1] == ["bench"]:
            return _bench(arguments[1:])
        if arguments[:1] == ["tune"]:
            return _tune(arguments[1:])
        if arguments[:1] == ["proto"]:
            return _proto(arguments[1:])
        if arguments[:1] == ["completion"]:
            return _completion(arguments[1:])
        return _serve(parse_options(arguments))
    except ConfigurationError as error:
        _print_error(error, as_json=arguments[:1] not in ([name] for name in COMMANDS) and _wants_json(arguments))
        return EXIT_USAGE
    except KeyboardInterrupt:  # before the server listens to signals, or before a command has anything to say
        return EXIT_INTERRUPTED if arguments and arguments[0] in COMMANDS else EXIT_FAILURE


class _Brief(logging.Formatter):
    """Lines of the log on the standard error of a command that reports by itself what is wrong."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``: the message alone, without a traceback."""
        return one_line(record.getMessage())


def _log_briefly() -> None:
    """Have what nobody else takes of the log written without tracebacks."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Brief())
    logging.lastResort = handler


def tritonserver() -> int:
    """Run as the command ``tritonserver``, whose defaults are Triton's where something else looks for them."""
    return main([PROGRAM, *sys.argv[1:]])


def _print_error(error: ToutatesError, *, as_json: bool = False) -> None:
    """Write a line for each problem to standard error; as a JSON object if ``as_json``."""
    lines = str(error).splitlines()
    if as_json:
        from toutates.system.logs.rendering import LogFormatter

        formatter = LogFormatter("json", LogLevels)
        for line in lines:
            said = formatter.of_fields(time_s=time.time(), level=logging.ERROR, area="server", event=line)
            print(said, end="", file=sys.stderr)
        return
    for line in lines:
        print(f"toutates: error: {line}", file=sys.stderr)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether --log-format is json, by a command line, environment or file that may be wrong in other settings."""
    parser = Parser("toutates", add_help=False)
    add_flags(parser, [FLAGS["log-format"], FLAGS["config"]])
    try:
        flags, _ = parser.parse_known_args(arguments)
    except ConfigurationError:  # a flag without its value
        flags = argparse.Namespace()
    return text_of("log-format", flags, os.environ) == "json"


def _serve(options: Options) -> int:
    watch_gil()  # before the extension modules below
    current()  # where the test mode is asked for in a wrong way, no server starts
    if options.processes != 1:
        from toutates.server.processes.sharing import count_of

        if count_of(options) > 1:
            # This one is the parent, and needs no ONNX Runtime.
            from toutates.server.processes.parent import run_parent

            with standard_streams():
                return run_parent(options)
    prepare_onnxruntime()
    from toutates.server.server import run

    with standard_streams():
        return run(options, ends_process=True)


def prepare_onnxruntime() -> None:
    """Import ONNX Runtime. It takes a while, so --help and wrong command lines do without it."""
    # ONNX Runtime's builds for Linux report models and runs to Microsoft, in threads of their own, unless told not to.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    _require_onnxruntime()


def _require_onnxruntime() -> None:
    """See that ONNX Runtime is installed, which is an extra because its two packages exclude each other.

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

    parsed = probe_parser().parse_args(arguments)
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


def _bench(arguments: list[str]) -> int:
    with interrupts_end_at_once():
        from toutates.command.bench.parser import bench_parser
        from toutates.command.bench.running import bench

    return bench(bench_parser().parse_args(arguments))


def _tune(arguments: list[str]) -> int:
    from toutates.command.tune.parser import tune_parser

    parsed = tune_parser().parse_args(arguments)
    with interrupts_end_at_once():
        prepare_onnxruntime()
        from toutates.command.tune.running import run_tune

    return run_tune(parsed)


def _check(arguments: list[str]) -> int:
    parsed = check_parser().parse_args(arguments)
    settings = settings_of(parsed)
    options = Options(
        repositories(settings, (parsed.repository,), "REPOSITORY"),
        model_cache_dir=settings["model-cache-dir"],
        execution_providers=settings["execution-providers"],
        custom_op_libraries=settings["custom-op-libraries"] or (),
        allow_pickle=settings["allow-pickle"],
    )
    prepare_onnxruntime()
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
    parsed = config_parser().parse_args(arguments)
    model_dir = Path(parsed.model_dir)
    settings = settings_of(parsed)
    libraries = settings["custom-op-libraries"] or ()
    prepare_onnxruntime()
    from toutates.command.config import effective_configuration, print_warnings, require_model_dir

    require_model_dir(model_dir)
    print_warnings(model_dir)
    try:
        text = effective_configuration(
            model_dir,
            parsed.version,
            "graph" if parsed.graph else parsed.format,
            libraries,
            allow_pickle=settings["allow-pickle"],
        )
        print(text, end="")
    except (ConfigurationError, ModelLoadError) as error:
        _print_error(error)
        return EXIT_FAILURE
    return EXIT_OK


def _config_show(arguments: list[str]) -> int:
    settings, path = _settings(arguments, "toutates config show")
    print(table(settings))
    options = make_options(settings)  # raises where settings do not go together
    if path:
        serving_path(options, path)
    for warning in settings.warnings:
        print(f"toutates: warning: {warning}", file=sys.stderr)
    return EXIT_OK


def _import(arguments: list[str]) -> int:
    parsed = import_parser().parse_args(arguments)
    try:
        return _import_folder(parsed) if _is_folder(parsed) else _import_archive(parsed)
    except ConfigurationError as error:
        _print_error(error)
        return EXIT_FAILURE


def _is_folder(parsed: argparse.Namespace) -> bool:
    """Whether a folder of sentence-transformers is to be imported, and not an archive of TorchServe."""
    from toutates.repositories.sentence_transformers.folder import is_model_folder

    if not parsed.handler and is_model_folder(Path(parsed.path)):
        return True
    given = (
        *(("--model-version",) if parsed.model_version else ()),
        *(("--int8",) if parsed.int8 else ()),
        *(("--with-optimum",) if parsed.with_optimum else ()),
        *(("--ignore-key",) if parsed.ignore_key else ()),
    )
    if given:
        raise ConfigurationError(
            "holds for folders with a config.json", key=given[0], value=parsed.path, remedy="leave it out"
        )
    return False


def _import_archive(parsed: argparse.Namespace) -> int:
    from toutates.repositories.torchserve.importing import Wanted, import_archive

    imported = import_archive(Path(parsed.path), Path(parsed.output), Wanted(parsed.model_name, parsed.handler))
    print(f"model '{imported.model}' version {imported.version}: {imported.path}")
    for note in imported.notes:
        print(f"note: {note}")
    return EXIT_OK


def _import_folder(parsed: argparse.Namespace) -> int:
    prepare_onnxruntime()
    from toutates.backends.text.folder import read_folder
    from toutates.repositories.sentence_transformers.importing import WantedModel, import_model

    wanted = WantedModel(
        parsed.model_name, parsed.model_version or 1, parsed.int8, parsed.with_optimum, parsed.ignore_key
    )
    imported = import_model(
        Path(parsed.path), Path(parsed.output), wanted, lambda text: print(text, file=sys.stderr, flush=True)
    )
    print(f"model '{imported.model}' version {imported.version}: {imported.path}")
    if imported.loss is not None:
        print(f"int8: {imported.loss}")
    try:
        read_folder(imported.path)
    except (ConfigurationError, ModelLoadError) as error:
        print(f"note: it cannot be served as it is: {error}")
    return EXIT_OK


def _init(arguments: list[str]) -> int:
    from toutates.command.init import init_repository

    parsed = init_parser().parse_args(arguments)
    try:
        place = init_repository(Path(parsed.folder), parsed.name)
    except ConfigurationError as error:
        _print_error(error)
        return EXIT_FAILURE
    print(f"model '{parsed.name}' version 1: {place / '1'}")
    print("Put a graph of your own in the place of its model.onnx; config.yaml beside it says what can be set.")
    print(f"Serve it: toutates serve {shlex.quote(parsed.folder)}")
    return EXIT_OK


def _proto(arguments: list[str]) -> int:
    from toutates.protocol.proto_files import write_protos

    folder = Path(proto_parser().parse_args(arguments).folder)
    try:
        paths = write_protos(folder)
    except OSError as error:
        _print_error(ConfigurationError(one_line(error), key="DIR", remedy="name a folder that can be written"))
        return EXIT_FAILURE
    for path in paths:
        print(path)
    return EXIT_OK


def _completion(arguments: list[str]) -> int:
    from toutates.command.completion import script

    print(script(completion_parser().parse_args(arguments).shell), end="")
    return EXIT_OK


def _settings(arguments: Sequence[str], prog: str = "toutates") -> tuple[Settings, str]:
    """The settings of a server; and PATH of ``serve``, "" without one, which takes the place of --model-repository."""
    program = arguments[0] if arguments and arguments[0] in SERVERS else ""
    takes_path = program == SERVERS[0]
    parser = server_parser(f"{prog} {program}" if takes_path else prog, takes_path=takes_path)
    flags = parser.parse_args(arguments[1:] if program else arguments)
    path: str = (flags.path or "") if takes_path else ""
    if any(getattr(flags, name.replace("-", "_")) is not None for name in REFUSED):
        raise ConfigurationError(
            "kernel polling threads belong to io_uring, which this server does not use",
            key="--sqpoll-enabled",
            remedy="leave the --sqpoll flags out",
        )
    if not path:
        return read_settings(flags, os.environ, program), ""
    if flags.model_repository is not None:
        raise ConfigurationError(
            "is the same as PATH", key="--model-repository", remedy="leave one of them out; a repository may be PATH"
        )
    flags.model_repository = [path]
    return read_settings(flags, os.environ, program, defaults_of_path(path)), path


def parse_options(arguments: Sequence[str]) -> Options:
    """Options from flags, environment and the file that they name. ``--help`` and ``--version`` print and exit.

    Args:
        arguments: the flags, after the command where one of SERVERS is given.

    Raises:
        ConfigurationError: a setting is unknown, or its value cannot be used.
    """
    settings, path = _settings(arguments)
    options = make_options(settings)
    return serving_path(options, path) if path else options
