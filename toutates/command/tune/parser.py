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
        description="Find the configuration with which a model, or several that share the machine, are served best: "
        "candidates are loaded into a server of its own, which ends with the command, and measured as by 'toutates "
        "bench'. The best is compared with the configuration as it is, in turns, and written only if it is better. "
        "Exit codes: 0 clean end, whether something better was found or not; 1 no configuration holds the constraints, "
        "the command was interrupted or a model does not load; 2 the command line cannot be used.",
    )
    parser.add_argument(
        "model_dirs",
        nargs="*",
        metavar="MODEL_DIR",
        help="folder of VERSION/model.onnx, or a model repository; several are tuned together; they are only read",
    )
    parser.add_argument("--version", type=positive, metavar="N", help="tune this version (default: the newest)")
    parser.add_argument(
        "-f", "--config-file", metavar="FILE", help="read models and constraints from a YAML file of Model Analyzer"
    )
    group = parser.add_argument_group("what is best")
    group.add_argument(
        "--objective",
        metavar="WORD",
        help=f"{' or '.join(OBJECTIVES)}: most requests a second, or the least p99 (default: {THROUGHPUT})",
    )
    group.add_argument(
        "--constraint",
        action="append",
        default=[],
        metavar="CONSTRAINT",
        help="this has to hold: p99<=5ms, memory<=500MB or rate>=1000, of one of several models MODEL:p99<=5ms; may be "
        "repeated",
    )
    group.add_argument(
        "--accuracy",
        metavar="ACCURACY",
        help="also try copies in int8 and fp16, if their answers hold this: cosine>=0.999 or difference<=1%% "
        "(default: none are made)",
    )
    group = parser.add_argument_group("load")
    group.add_argument("--concurrency", type=positive, metavar="N", help="requests without an answer (default: 64)")
    group.add_argument("-b", type=positive, dest="batch", metavar="N", help="rows of each request (default: 1)")
    group.add_argument(
        "--weight",
        action="append",
        default=[],
        metavar="MODEL=N",
        help="of several models, ask this one so often in proportion (default of each: 1)",
    )
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT:N,N",
        help="send an input of this shape, batch included unless -b is given (default: the model's, with 1 for open "
        "axes)",
    )
    group.add_argument("--data", metavar="SOURCE", help="as of 'toutates bench': random, zero, or a file")
    group.add_argument(
        "--lengths",
        metavar="MIN:MAX",
        help="rows of models with padding have so many elements, and texts so many characters, by chance (default: "
        "8:128, and 20:400)",
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
        "--points",
        type=positive,
        metavar="N",
        help="measure so many candidates, at most (default: 32 for each model, 128 in all)",
    )
    group = parser.add_argument_group("results")
    group.add_argument(
        "--output",
        metavar="DIR",
        help="write config.yaml and config.pbtxt there, if they are better; of several models in a folder for each "
        "(default: NAME-tuned in this folder)",
    )
    group.add_argument(
        "--write",
        action="store_true",
        help="write config.yaml (config.pbtxt where that declares tensors) beside the model instead; the one before is "
        "kept, with .before behind its name",
    )
    group.add_argument("--json", metavar="FILE", help="write all figures as JSON")
    group.add_argument("--html", metavar="FILE", help="write a page with plots, which needs no other file")
    add_flags(
        parser.add_argument_group("server"),
        [FLAGS["execution-providers"], FLAGS["custom-op-libraries"], FLAGS["allow-pickle"]],
    )
    return parser
