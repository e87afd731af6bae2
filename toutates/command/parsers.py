"""The parsers of the commands that do not serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from toutates.command.bench.parser import bench_parser
from toutates.command.flags import FLAGS
from toutates.command.parser import Parser, add_flags
from toutates.command.tune.parser import tune_parser
from toutates.command.values import model_name, positive, seconds

__all__ = [
    "PARSERS",
    "check_parser",
    "completion_parser",
    "config_parser",
    "import_parser",
    "init_parser",
    "probe_parser",
    "proto_parser",
]

#: Shells that there are completions for.
SHELLS: Final = ("bash", "zsh", "fish")


def probe_parser() -> Parser:
    """The parser of ``toutates probe``."""
    parser = Parser(
        prog="toutates probe",
        description="Ask a gRPC server for its health (grpc.health.v1). Exit codes: 0 it is serving, 1 it is not "
        "serving or does not answer, 2 the command line cannot be used.",
    )
    parser.add_argument("address", metavar="ADDR", help="HOST:PORT, such as 127.0.0.1:8001")
    parser.add_argument(
        "--timeout", type=seconds, default=3.0, metavar="SECONDS", help="give up after so many seconds (default: 3)"
    )
    parser.add_argument("--tls", action="store_true", help="use TLS; each of the other --tls flags implies it")
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="trust these authorities, or this certificate of the server (PEM; default: the system's authorities)",
    )
    parser.add_argument(
        "--tls-server-name", metavar="NAME", help="name in the server's certificate (default: the host of ADDR)"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="show this certificate to the server (PEM; default: none)")
    parser.add_argument("--tls-key", metavar="FILE", help="use this private key of --tls-cert (PEM, not encrypted)")
    return parser


def check_parser() -> Parser:
    """The parser of ``toutates check``."""
    parser = Parser(
        prog="toutates check",
        description="Read every model and configuration of a repository, and print a line for each reason why a "
        "server on this machine would refuse to serve it. Models are loaded on the CPU. Exit codes: 0 no errors, 1 "
        "errors, 2 the command line cannot be used or REPOSITORY is not a repository.",
    )
    parser.add_argument(
        "repository",
        metavar="REPOSITORY",
        help="folder of MODEL/VERSION/model.onnx, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
        "as://ACCOUNT/CONTAINER/PREFIX, hf://ORG/MODEL, "
        "oci://REGISTRY/REPO:TAG or https://HOST/PATH",
    )
    add_flags(parser, [FLAGS["execution-providers"], FLAGS["custom-op-libraries"], FLAGS["allow-pickle"]])
    parser.add_argument(
        "--assume-gpu",
        action="store_true",
        help="assume that the server has the GPUs that models ask for",
    )
    add_flags(parser, [FLAGS["s3-endpoint"], FLAGS["s3-region"], FLAGS["model-cache-dir"]])
    parser.add_argument("--strict", action="store_true", help="exit with 1 also if there are only warnings")
    return parser


def config_parser() -> Parser:
    """The parser of ``toutates config MODEL_DIR``."""
    parser = Parser(
        prog="toutates config",
        description="Print the complete configuration that a model is served with, from its files and its graph. Exit "
        "codes: 0 clean end, 1 the model cannot be served, 2 the command line cannot be used. 'toutates config show' "
        "prints the settings of the server instead.",
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="folder of VERSION/model.onnx")
    parser.add_argument(
        "--version",
        type=positive,
        metavar="N",
        help="print this version (default: the newest that is served)",
    )
    parser.add_argument(
        "--format",
        choices=["yaml", "pbtxt", "both"],
        default="both",
        metavar="FORMAT",
        help="print yaml, pbtxt or both (default: both)",
    )
    parser.add_argument(
        "--graph", action="store_true", help="print the graph of an ensemble as a picture (SVG) instead"
    )
    add_flags(parser, [FLAGS["custom-op-libraries"], FLAGS["allow-pickle"]])
    return parser


def import_parser() -> Parser:
    """The parser of ``toutates import``."""
    parser = Parser(
        prog="toutates import",
        description="Make a model of a folder of sentence-transformers, or of an archive of TorchServe: a folder of a "
        "model repository. The ONNX graph of a folder is written from config.json and the safetensors weights, without "
        "PyTorch; the handler of an archive runs as a Python model. Nothing of either is run, and nothing is "
        "installed. Exit codes: 0 clean end, 1 it cannot be imported, 2 the command line cannot be used.",
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a folder with config.json and model.safetensors; or a .mar, a .tar.gz, or a folder with the same content",
    )
    parser.add_argument(
        "--output", "--out", default="models", metavar="REPOSITORY", help="the model repository (default: models)"
    )
    parser.add_argument(
        "--model-name", default="", metavar="NAME", help="name of the model (default: the folder's or the manifest's)"
    )
    archives = parser.add_argument_group("archives of TorchServe")
    archives.add_argument(
        "--handler",
        default="",
        metavar="HANDLER",
        help="FILE.py or FILE.py:FUNCTION of the archive (default: the manifest's)",
    )
    folders = parser.add_argument_group("folders of sentence-transformers and transformers")
    folders.add_argument(
        "--model-version", type=positive, default=None, metavar="N", help="number of the version (default: 1)"
    )
    folders.add_argument(
        "--int8",
        action="store_true",
        help="quantize the weights to 8 bits, measure on sample texts what that loses, and print it",
    )
    folders.add_argument(
        "--with-optimum", action="store_true", help="convert by optimum, which needs PyTorch, whatever the architecture"
    )
    folders.add_argument(
        "--ignore-key",
        action="append",
        default=[],
        metavar="KEY",
        help="a key of config.json that changes nothing of what the model computes",
    )
    return parser


def init_parser() -> Parser:
    """The parser of ``toutates init``."""
    parser = Parser(
        prog="toutates init",
        description="Write a model repository to begin with: an example model, and its configuration with a comment "
        "for each key. What is there is never overwritten. Exit codes: 0 clean end, 1 it cannot be written, 2 the "
        "command line cannot be used.",
    )
    parser.add_argument("folder", metavar="DIR", help="the repository, which is made if it is not there")
    parser.add_argument(
        "--name", type=model_name, default="example", metavar="NAME", help="name of the model (default: example)"
    )
    return parser


def proto_parser() -> Parser:
    """The parser of ``toutates proto``."""
    parser = Parser(
        prog="toutates proto",
        description="Write the .proto files of the protocol, for clients of gRPC in any language. Older ones there are "
        "overwritten. Exit codes: 0 clean end, 1 they cannot be written, 2 the command line cannot be used.",
    )
    parser.add_argument("folder", metavar="DIR", help="where to, which is made if it is not there")
    return parser


def completion_parser() -> Parser:
    """The parser of ``toutates completion``."""
    parser = Parser(
        prog="toutates completion",
        description="Print a script that completes commands and flags of toutates in a shell. For this session: "
        "'source <(toutates completion bash)', the same for zsh, and 'toutates completion fish | source'.",
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    return parser


#: By command.
PARSERS: Final[Mapping[str, Callable[[], Parser]]] = MappingProxyType(
    {
        "probe": probe_parser,
        "check": check_parser,
        "config": config_parser,
        "import": import_parser,
        "init": init_parser,
        "bench": bench_parser,
        "tune": tune_parser,
        "proto": proto_parser,
        "completion": completion_parser,
    }
)
