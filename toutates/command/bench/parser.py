"""The parser of ``toutates bench``."""

from __future__ import annotations

from toutates.command.bench.perf_analyzer import add_perf_analyzer_flags
from toutates.command.parser import Parser
from toutates.command.values import positive, seconds

__all__ = ["bench_parser"]


def bench_parser() -> Parser:
    """The parser of ``toutates bench``."""
    parser = Parser(
        prog="toutates bench",
        usage="toutates bench URL --model NAME [options]",
        description="Measure a server of the v2 protocol, or one of embeddings: requests per second and latency, by "
        "clients in processes of their own that tell when they were the bottleneck themselves. Requests have random "
        "data by the model's metadata, and answers are compared with the first one to the same request. The common "
        "flags of perf_analyzer are taken too. Exit codes: 0 clean end, 1 a condition failed, an answer was wrong, the "
        "client was the bottleneck or the server does not answer, 2 the command line cannot be used.",
    )
    _add_server(parser)
    _add_load(parser)
    _add_data(parser)
    _add_results(parser)
    add_perf_analyzer_flags(parser)
    return parser


def _add_server(parser: Parser) -> None:
    group = parser.add_argument_group("server and models")
    group.add_argument(
        "url", nargs="?", metavar="URL", help="grpc://, grpcs://, http:// or https://HOST:PORT; HOST:PORT is gRPC"
    )
    group.add_argument(
        "-m",
        "--model",
        action="append",
        default=[],
        metavar="NAME[=WEIGHT]",
        help="ask this model; several are asked by chance, as often as their weights say (default of each: 1)",
    )
    group.add_argument("-x", "--model-version", default="", metavar="N", help="of the models (default: the newest)")
    group.add_argument(
        "--zipf",
        type=float,
        metavar="S",
        help="the n-th model is asked as often as 1 / n^S says, instead of by weights",
    )
    group.add_argument(
        "--api",
        choices=("v2", "openai", "tei"),
        default="v2",
        help="ask for inferences, or for embeddings by /v1/embeddings or by /embed (default: v2)",
    )
    group.add_argument(
        "--streaming", action="store_true", help="send requests as messages of streams, one for each connection"
    )
    group.add_argument(
        "-H", "--header", action="append", default=[], metavar="NAME:VALUE", help="send it with requests"
    )
    group.add_argument("--tls", action="store_true", help="use TLS; each of the other --tls flags implies it")
    group.add_argument("--tls-ca", default="", metavar="FILE", help="trust these authorities (PEM)")
    group.add_argument("--tls-server-name", default="", metavar="NAME", help="name in the server's certificate")
    group.add_argument("--tls-cert", default="", metavar="FILE", help="show this certificate to the server (PEM)")
    group.add_argument("--tls-key", default="", metavar="FILE", help="private key of --tls-cert (PEM)")
    group.add_argument("--tls-no-verify", action="store_true", help="take every certificate")
    group.add_argument(
        "--metrics-url", metavar="URL", help="read the server's CPU, memory, batches and queue from its metrics"
    )


def _add_load(parser: Parser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--concurrency",
        metavar="N or START:END[:STEP]",
        help="closed loop: keep so many requests without an answer (default: 16)",
    )
    group.add_argument(
        "--rate",
        metavar="N or START:END[:STEP]",
        help="open loop: send so many requests per second, whatever becomes of those before; latency counts from the "
        "time at which each was to be sent (default: none, a closed loop)",
    )
    group.add_argument(
        "--arrivals",
        metavar="KIND",
        help="of an open loop: constant, poisson, gamma:CV (gaps with a coefficient of variation), burst:N (so many at "
        "once), ramp:RATE (evenly to this rate) or trace:FILE (gaps in microseconds, a line each); default: poisson",
    )
    group.add_argument(
        "--connections",
        type=positive,
        metavar="N",
        help="send over so many in turn (default: 4; over HTTP, where each has one request under way, as many as "
        "--concurrency, or 64 in an open loop)",
    )
    group.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help="that send together (default: 1, and more where that one is too busy, up to half of the cores)",
    )
    group.add_argument(
        "--seconds", type=seconds, metavar="SECONDS", help="send for so long in each repeat (default: 2)"
    )
    group.add_argument(
        "--warmup",
        type=float,
        default=0.5,
        metavar="SECONDS",
        help="send for so long before, not counted (default: 0.5)",
    )
    group.add_argument("--repeats", type=positive, metavar="N", help="measure so often (default: 3; with --compare 6)")
    group.add_argument("--seed", type=positive, default=1, metavar="N", help="settles data and arrivals (default: 1)")
    group.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="TARGET",
        help="find the highest rate at which this holds: p99=10ms or errors=1%%; may be repeated",
    )
    group.add_argument("--compare", metavar="URL2", help="measure this server in turns, and say whether they differ")


def _add_data(parser: Parser) -> None:
    group = parser.add_argument_group("data and checks")
    group.add_argument(
        "--data",
        "--input-data",
        default="random",
        metavar="SOURCE",
        help="random, zero, a JSON file of perf_analyzer's form, or an NPZ file with an array for each input; for "
        "embeddings a file of lines (default: random)",
    )
    group.add_argument("-b", type=positive, dest="batch", metavar="N", help="rows of each request, or texts")
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="[MODEL.]INPUT:N,N",
        help="send an input of this shape, batch included unless -b is given (default: the model's, with 1 for open "
        "axes)",
    )
    group.add_argument("--string-length", type=positive, metavar="N", help="characters of random strings")
    group.add_argument("--string-data", metavar="TEXT", help="all strings are this one")
    group.add_argument("--tensors", choices=("json", "binary"), help="how REST has tensors (default: binary)")
    group.add_argument(
        "--shared-memory",
        choices=("none", "system", "cuda"),
        default="none",
        help="put inputs there; the server is on this machine (default: none)",
    )
    group.add_argument(
        "--output-shared-memory-size",
        type=positive,
        metavar="BYTES",
        help="of each output, which is put there; it is not compared",
    )
    group.add_argument(
        "--sequence-length", type=positive, metavar="N", help="send sequences of so many requests, one for each place"
    )
    group.add_argument(
        "--sequence-length-variation", type=float, default=20.0, metavar="PERCENT", help="of lengths (default: 20)"
    )
    group.add_argument(
        "--reference", metavar="URL or FILE.onnx", help="compare answers with another server's, or with this model's"
    )
    group.add_argument("--no-check", action="store_true", help="do not compare answers")


def _add_results(parser: Parser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 1 if this holds: p99>10ms, rate<1000 or errors>1%%; p50 to p99.99; may be repeated",
    )
    group.add_argument("--json", action="store_true", help="print the result as JSON")
    group.add_argument("--html", metavar="FILE", help="write a page with plots, which needs no other file")
    group.add_argument("-f", "--csv", metavar="FILE", help="write the columns of perf_analyzer")
