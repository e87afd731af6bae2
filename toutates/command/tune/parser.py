"""The parser of ``toutates tune``."""

from __future__ import annotations

from toutates.command.flags import FLAGS
from toutates.command.parser import Parser, add_flags
from toutates.command.values import positive, seconds
from toutates.tune.constraints import OBJECTIVES, THROUGHPUT

__all__ = ["tune_parser"]


def tune_parser() -> Parser:
    """The parser of ``toutates tune``."""
    parser = Parser(
        prog="toutates tune",
        description="Find the configuration with which a model is served best on this machine: candidates are loaded "
        "into a server of its own, which ends with the command, and measured as by 'toutates bench'. The best is "
        "compared with the configuration as it is, in turns, and written only if it is better. Exit codes: 0 clean "
        "end, whether something better was found or not; 1 no configuration holds the constraints, the command was "
        "interrupted or the model does not load; 2 the command line cannot be used.",
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="folder of VERSION/model.onnx; it is only read")
    parser.add_argument("--version", type=positive, metavar="N", help="tune this version (default: the newest)")
    group = parser.add_argument_group("what is best")
    group.add_argument(
        "--objective",
        default=THROUGHPUT,
        metavar="WORD",
        help=f"{' or '.join(OBJECTIVES)}: most requests a second, or the least p99 (default: {THROUGHPUT})",
    )
    group.add_argument(
        "--constraint",
        action="append",
        default=[],
        metavar="CONSTRAINT",
        help="this has to hold: p99<=5ms, memory<=500MB or rate>=1000; may be repeated",
    )
    group = parser.add_argument_group("load")
    group.add_argument(
        "--concurrency", type=positive, default=64, metavar="N", help="requests without an answer (default: 64)"
    )
    group.add_argument("-b", type=positive, dest="batch", metavar="N", help="rows of each request (default: 1)")
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT:N,N",
        help="send an input of this shape, batch included unless -b is given (default: the model's, with 1 for open "
        "axes)",
    )
    group.add_argument(
        "--data", default="random", metavar="SOURCE", help="as of 'toutates bench': random, zero, or a file"
    )
    group.add_argument("--string-length", type=positive, metavar="N", help="characters of random strings")
    group.add_argument(
        "--seconds-per-point",
        type=seconds,
        default=1.0,
        metavar="N",
        help="measure each candidate for so long (default: 1)",
    )
    group.add_argument(
        "--points", type=positive, default=32, metavar="N", help="measure so many candidates, at most (default: 32)"
    )
    group = parser.add_argument_group("results")
    group.add_argument(
        "--output",
        metavar="DIR",
        help="write config.yaml and config.pbtxt there, if they are better (default: NAME-tuned in this folder)",
    )
    group.add_argument(
        "--write",
        action="store_true",
        help="write config.yaml beside the model instead; the one before is kept as config.yaml.before",
    )
    group.add_argument("--json", metavar="FILE", help="write all figures as JSON")
    group.add_argument("--html", metavar="FILE", help="write a page with plots, which needs no other file")
    add_flags(
        parser.add_argument_group("server"),
        [FLAGS["execution-providers"], FLAGS["custom-op-libraries"], FLAGS["allow-pickle"]],
    )
    return parser
