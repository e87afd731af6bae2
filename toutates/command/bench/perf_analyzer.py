"""Flags of perf_analyzer, so that scripts go on working: what each means here, and why some cannot be had."""

from __future__ import annotations

import argparse
import re
from typing import Any, Final

from toutates.command.parser import Parser
from toutates.system.errors import ConfigurationError

__all__ = ["add_perf_analyzer_flags", "as_written", "translate"]

_FLAG: Final = re.compile(r"--[a-z-]+")
#: Flags that have nothing to do here, with the number of their values.
_IDLE: Final = {
    ("-a", "--async"): 0,
    ("--sync",): 0,
    ("-v", "--verbose"): 0,
    ("--extra-verbose",): 0,
    ("--verbose-csv",): 0,
    ("--collect-metrics",): 0,
    ("--metrics-interval",): 1,
    ("--max-threads",): 1,
    ("-s", "--stability-percentage"): 1,
    ("--measurement-mode",): 1,
    ("--warmup-request-count",): 1,
    ("--sequence-id-range",): 1,
}

_NO_OTHER_API: Final = "only the v2 protocol and APIs of embeddings are measured"
#: Flags that cannot be honoured, and why.
_REFUSED: Final = {
    "--serial-sequences": "requests of one sequence are always sent one after another; leave it out",
    "--model-signature-name": _NO_OTHER_API,
    "--grpc-method": _NO_OTHER_API,
    "--grpc-compression-algorithm": "messages are sent uncompressed",
    "--model-repository": "the server is not run inside the client; start it, and give its address",
    "--triton-server-directory": "the server is not run inside the client; start it, and give its address",
    "--request-count": "loads last for a time; use --measurement-interval",
    "--measurement-request-count": "loads last for a time; use --measurement-interval",
    "--periodic-concurrency-range": "the concurrency stays during a load; use --concurrency-range",
    "--request-period": "the concurrency stays during a load; use --concurrency-range",
    "--profile-export-file": "single requests are not exported; --json has a histogram",
    "--trace-level": "set the server's tracing by its trace settings",
    "--trace-rate": "set the server's tracing by its trace settings",
    "--trace-count": "set the server's tracing by its trace settings",
    "--log-frequency": "set the server's tracing by its trace settings",
    "--bls-composing-models": "the members of the model are not measured apart",
    "--data-directory": "name a file by --input-data",
    "--enable-mpi": "several processes of one machine make a load together: --processes",
    "-t": "it was given up by perf_analyzer; use --concurrency-range",
    "-d": "it was given up by perf_analyzer; use --concurrency-range",
    "-c": "it was given up by perf_analyzer; use --latency-threshold",
}


class _Refuse(argparse.Action):
    """Ends the parsing with the reason."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        raise ConfigurationError(
            "of perf_analyzer is not offered", key=str(option_string), remedy=_REFUSED[str(option_string)]
        )


class _Note(argparse.Action):
    """Stores the value, and under which name the flag was written."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values)
        namespace.written = {**(getattr(namespace, "written", None) or {}), self.dest: option_string}


def as_written(parsed: argparse.Namespace, error: ConfigurationError) -> ConfigurationError:
    """An error that names flags as they were written, where that was by perf_analyzer's names.

    Args:
        parsed: what ``translate`` was given.
        error: with our names.
    """
    said: dict[str, tuple[str, str]] = getattr(parsed, "said", {})

    def renamed(text: str) -> str:
        return _FLAG.sub(lambda match: said.get(match[0], (match[0],))[0], text)

    flag, value = said.get(error.key, (error.key, error.value))
    shown = error.value if error.value is None else value
    return ConfigurationError(renamed(error.problem), key=flag, value=shown, remedy=renamed(error.remedy))


def add_perf_analyzer_flags(parser: Parser) -> None:
    """Add the flags that ``toutates bench`` has by other names, has no need of, or refuses."""
    group = parser.add_argument_group("flags of perf_analyzer")
    add = group.add_argument
    add("-u", dest="pa_url", action=_Note, metavar="URL", help="the server, instead of URL")
    add("-i", dest="pa_protocol", metavar="PROTOCOL", help="grpc or http (default: http, as perf_analyzer has it)")
    add(
        "--concurrency-range",
        dest="pa_concurrency",
        action=_Note,
        metavar="START[:END[:STEP]]",
        help="as --concurrency",
    )
    add(
        "--request-rate-range",
        dest="pa_rate",
        action=_Note,
        metavar="START[:END[:STEP]]",
        help="as --rate, of constant arrivals",
    )
    add("--request-distribution", dest="pa_distribution", action=_Note, metavar="KIND", help="constant or poisson")
    add("--request-intervals", dest="pa_intervals", action=_Note, metavar="FILE", help="as --arrivals trace:FILE")
    add(
        "-p",
        "--measurement-interval",
        type=float,
        dest="pa_interval",
        action=_Note,
        metavar="MS",
        help="as --seconds, in milliseconds",
    )
    add("--percentile", type=int, dest="pa_percentile", metavar="N", help="of --latency-threshold; all are shown")
    add(
        "-l",
        "--latency-threshold",
        type=float,
        dest="pa_threshold",
        metavar="MS",
        help="end a range beyond this latency",
    )
    add("--binary-search", action="store_true", dest="pa_search", help="with -l: as --slo")
    add("-z", "--zero-input", action="store_true", dest="pa_zero", help="as --data zero")
    add("--input-tensor-format", choices=("json", "binary"), dest="pa_inputs", help="of REST")
    add("--output-tensor-format", choices=("json", "binary"), dest="pa_outputs", help="of REST")
    add(
        "--num-of-sequences",
        type=int,
        dest="pa_sequences",
        action=_Note,
        metavar="N",
        help="as --concurrency, of sequences",
    )
    add("--start-sequence-id", type=int, default=1, metavar="N", help="of the first sequence (default: 1)")
    add("-r", "--max-trials", type=int, dest="pa_trials", action=_Note, metavar="N", help="as --repeats")
    add("--random-seed", type=int, dest="pa_seed", metavar="N", help="as --seed")
    add("--service-kind", dest="pa_service", metavar="KIND", help="triton, or openai for embeddings")
    add("--endpoint", dest="pa_endpoint", metavar="PATH", help="of openai: v1/embeddings")
    add("--request-parameter", action="append", default=[], metavar="NAME:VALUE:TYPE", help="of each inference")
    add("--ssl-grpc-use-ssl", action="store_true", dest="pa_ssl", help="as --tls")
    for name in ("--ssl-grpc-root-certifications-file", "--ssl-https-ca-certificates-file"):
        add(name, dest="tls_ca", metavar="FILE", help="as --tls-ca")
    for name in ("--ssl-grpc-certificate-chain-file", "--ssl-https-client-certificate-file"):
        add(name, dest="tls_cert", metavar="FILE", help="as --tls-cert")
    for name in ("--ssl-grpc-private-key-file", "--ssl-https-private-key-file"):
        add(name, dest="tls_key", metavar="FILE", help="as --tls-key")
    for name in ("--ssl-https-verify-peer", "--ssl-https-verify-host"):
        add(name, type=int, default=1, metavar="N", help="0 as --tls-no-verify")
    for names, values in _IDLE.items():
        if values:
            add(*names, dest="pa_idle", metavar="VALUE", help=argparse.SUPPRESS)
        else:
            add(*names, action="store_true", dest="pa_idle_flag", help=argparse.SUPPRESS)
    for name in _REFUSED:
        add(name, nargs="?", action=_Refuse, dest="pa_refused", help=argparse.SUPPRESS)


def translate(parsed: argparse.Namespace) -> None:
    """Write what perf_analyzer's flags say under the names of ours.

    Raises:
        ConfigurationError: one cannot be honoured, or says what another flag says.
    """
    parsed.written, parsed.said = getattr(parsed, "written", None) or {}, {}
    # perf_analyzer's default is HTTP, on the port 8000.
    parsed.protocol = ""
    if parsed.pa_url is not None:
        _put(parsed, "url", parsed.pa_url, "pa_url")
        parsed.protocol = "" if "://" in parsed.pa_url else "http"
    if parsed.pa_protocol is not None:
        protocol = {"grpc": "grpc", "http": "http", "https": "http", "rest": "http"}.get(parsed.pa_protocol.lower())
        if protocol is None:
            raise ConfigurationError("is no protocol", key="-i", value=parsed.pa_protocol, remedy="write grpc or http")
        parsed.protocol = protocol
    if parsed.url is None and parsed.pa_protocol is not None:
        parsed.url = "localhost"
    _put(parsed, "concurrency", parsed.pa_concurrency, "pa_concurrency")
    if parsed.pa_rate is not None:
        _put(parsed, "rate", parsed.pa_rate, "pa_rate")
        _put(parsed, "arrivals", parsed.pa_distribution or "constant", "pa_distribution")
    elif parsed.pa_distribution is not None:
        _put(parsed, "arrivals", parsed.pa_distribution, "pa_distribution")
    if parsed.pa_intervals is not None:
        _put(parsed, "arrivals", f"trace:{parsed.pa_intervals}", "pa_intervals")
    if parsed.pa_interval is not None:
        if not 0 < parsed.pa_interval <= 86_400_000:
            raise ConfigurationError(
                "must be above 0", key=parsed.written["pa_interval"], value=f"{parsed.pa_interval:g}"
            )
        _put(parsed, "seconds", parsed.pa_interval / 1e3, "pa_interval")
    _put(parsed, "repeats", None if parsed.pa_trials is None else min(max(1, parsed.pa_trials), 10), "pa_trials")
    if parsed.pa_seed is not None:
        parsed.seed = max(1, parsed.pa_seed)
    if parsed.pa_zero:
        parsed.data = "zero"
    parsed.inputs = parsed.pa_inputs or parsed.tensors or "binary"
    parsed.outputs = parsed.pa_outputs or parsed.tensors or "binary"
    if parsed.pa_sequences is not None:
        if parsed.sequence_length is None:
            parsed.sequence_length = 20
        _put(parsed, "concurrency", str(parsed.pa_sequences), "pa_sequences")
    if parsed.shared_memory == "cuda":
        raise ConfigurationError(
            "is not offered", key="--shared-memory", value="cuda", remedy="use 'system'; the client has no GPU"
        )
    parsed.tls = parsed.tls or parsed.pa_ssl
    parsed.tls_no_verify = parsed.tls_no_verify or not (parsed.ssl_https_verify_peer and parsed.ssl_https_verify_host)
    _translate_service(parsed)
    _translate_threshold(parsed)


def _translate_service(parsed: argparse.Namespace) -> None:
    if parsed.pa_service == "openai":
        if parsed.pa_endpoint and parsed.pa_endpoint.strip("/") not in ("v1/embeddings", "embeddings"):
            raise ConfigurationError(
                "is no API of embeddings", key="--endpoint", value=parsed.pa_endpoint, remedy="write v1/embeddings"
            )
        parsed.api = "openai"
    elif parsed.pa_service not in (None, "triton"):
        raise ConfigurationError(
            "is not offered", key="--service-kind", value=parsed.pa_service, remedy=f"use 'triton'; {_NO_OTHER_API}"
        )


def _translate_threshold(parsed: argparse.Namespace) -> None:
    if parsed.pa_percentile is not None and parsed.pa_percentile not in (50, 90, 95, 99):
        raise ConfigurationError(
            "is not measured", key="--percentile", value=str(parsed.pa_percentile), remedy="use 50, 90, 95 or 99"
        )
    if parsed.pa_search:
        if parsed.pa_threshold is None or parsed.rate is None:
            raise ConfigurationError(
                "needs --latency-threshold and --request-rate-range",
                key="--binary-search",
                remedy="or use --slo p99=10ms",
            )
        # perf_analyzer's threshold is for the mean where no percentile is said; the median is near it.
        parsed.slo = [*parsed.slo, f"p{parsed.pa_percentile or 50}={parsed.pa_threshold:g}ms"]


def _put(parsed: argparse.Namespace, name: str, value: Any, dest: str) -> None:
    """Write a value under our name, unless that has one. ``dest`` has what the flag of perf_analyzer said."""
    if value is None:
        return
    own = "URL" if name == "url" else f"--{name}"
    flag, shown = parsed.written.get(dest, own), getattr(parsed, dest)
    if getattr(parsed, name) is not None:
        written, _ = parsed.said.get(own, (own, None))
        raise ConfigurationError(f"says what {written} says", key=flag, remedy="say it once")
    if shown is not None:
        parsed.said[own] = flag, str(shown)
    setattr(parsed, name, value)
