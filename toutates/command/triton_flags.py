"""Every flag of ``tritonserver`` (2.73), and what becomes of it here, in one table. The parser, ``triton_translation``
and the table of docs/migrating-from-triton.md are made from it.

A flag that the server has under the same name, with the same meaning, is listed for the docs alone.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from toutates.command.flags import LIMIT
from toutates.command.values import Reader, boolean, choice, whole

__all__ = ["TRITON_FLAGS", "TritonFlag", "Verdict", "effect"]


class Verdict(Enum):
    """What becomes of a flag of tritonserver; the values are those of the docs."""

    SAME = "same"
    WORKS = "works"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class TritonFlag:
    """A flag of tritonserver.

    Attributes:
        name: without its dashes.
        note: what it does here, or why it does nothing; for the docs, for its warning, and for its refusal.
        verdict: what becomes of it, if the server has no flag of this name.
        setting: the setting that takes its value. Without one, a flag that works is read together with others.
        read: reads its value; for a flag with ``setting``, makes the text of that setting's value.
        harmless: the value that asks for what is done here anyway: the flag is then neither refused nor warned of.
        bare: the text of the value if the flag is given without one; None if it needs one.
        remedy: what to write instead of a flag that is refused.
    """

    name: str
    note: str
    verdict: Verdict = Verdict.WORKS
    setting: str = ""
    read: Reader = _as_it_is
    harmless: Any = None
    bare: str | None = None
    remedy: str = ""


def effect(flag: TritonFlag, known: Container[str]) -> tuple[Verdict, str]:
    """What becomes of a flag, and the note about it.

    Args:
        flag: a flag of the table.
        known: names of the settings that the server has.
    """
    if flag.name in known:
        return Verdict.SAME, flag.note
    return flag.verdict, flag.note


def _verbosity(text: str) -> int:
    """A number, or a boolean: Triton takes both."""
    return whole(0)(text) if text.isdigit() else int(boolean(text))


def _compression(text: str) -> str:
    return "none" if choice("none", "low", "medium", "high")(text.lower()) == "none" else "gzip"


def _seconds(text: str) -> str:
    """Milliseconds as seconds. More than a day, such as gRPC's 2147483647 for "never", is 0, which is never here."""
    milliseconds = whole(0, 2**31 - 1)(text)
    return "0" if milliseconds > 86_400_000 else str(milliseconds / 1_000)


def _port(text: str) -> int:
    port: int = whole(0, 65_535)(text)
    return port


_NONE: Final = Verdict.NO_EFFECT
_REFUSED: Final = Verdict.REFUSED
_NO_PLUGINS: Final = "there are no plug-ins"
_NO_SAGEMAKER: Final = "the endpoints of SageMaker are not offered"
_NO_VERTEX: Final = "the endpoints of Vertex AI are not offered"
_NO_FILE: Final = "traces are not written to files, they go to OpenTelemetry; see [tracing.md](tracing.md)"
_PINGS: Final = "200 PINGs a second are allowed, and 1,000 at once"
_COMPLETED: Final = "configurations are always completed from the graph; write `max_batch_size` where you mean it"
_ORT_POOLS: Final = "ONNX Runtime has its own memory; see `allocator` in config.yaml"

_ROWS: Final = (
    # The models
    TritonFlag("model-repository", "see [above](#where-models-are)"),
    TritonFlag("model-store", "another name of `--model-repository`", setting="model-repository"),
    TritonFlag("model-control-mode", "`none` by default"),
    TritonFlag("repository-poll-secs", "15 by default"),
    TritonFlag("load-model", "with `--model-control-mode explicit` only"),
    TritonFlag("model-load-thread-count", "by default 1, where Triton has 4"),
    TritonFlag("strict-readiness", "`true` by default"),
    TritonFlag("exit-on-error", "**`false` by default**, see [below](#what-is-different)"),
    TritonFlag("disable-auto-complete-config", _COMPLETED, _NONE, read=boolean, harmless=False, bare="true"),
    TritonFlag("strict-model-config", _COMPLETED, _NONE, read=boolean, harmless=False),
    TritonFlag(
        "model-config-name",
        "files in `configs/` are not read, only `config.pbtxt` and `config.yaml`",
        _REFUSED,
        harmless="",
        remedy="write that configuration to config.pbtxt, and leave the flag out",
    ),
    TritonFlag(
        "model-load-retry-count",
        "0 by default; a configuration that cannot be used is not tried again, downloads are by themselves "
        "(`AWS_MAX_ATTEMPTS`)",
    ),
    TritonFlag(
        "model-namespacing", "names of models are unique over all repositories", _NONE, read=boolean, harmless=False
    ),
    TritonFlag("model-load-gpu-limit", "`gpu_mem_limit` in a model's `parameters` bounds its session", _NONE),
    # The server
    TritonFlag("id", "`--server-id`, by default `triton`", setting="server-id"),
    TritonFlag("exit-timeout-secs", "`--shutdown-grace`, by default 30", setting="shutdown-grace"),
    # gRPC
    TritonFlag(
        "allow-grpc",
        "gRPC is always served",
        _REFUSED,
        read=boolean,
        harmless=True,
        remedy="leave the flag out; --grpc-address=127.0.0.1 keeps other machines away",
    ),
    TritonFlag("grpc-address", "the host of `--grpc-addr`, by default `0.0.0.0`"),
    TritonFlag("grpc-port", "the port of `--grpc-addr`, by default 8001", read=_port),
    TritonFlag("reuse-grpc-port", "`--reuse-port grpc`; `true` with the other flag", read=boolean),
    TritonFlag("grpc-restricted-protocol", "no restriction by default"),
    TritonFlag("grpc-header-forward-pattern", "Python models read them as parameters; names in any case"),
    TritonFlag(
        "grpc-infer-response-compression-level",
        "`--grpc-compression gzip` for `low`, `medium` and `high`",
        setting="grpc-compression",
        read=_compression,
    ),
    TritonFlag(
        "grpc-use-ssl",
        "serves TLS on the port of gRPC, and there alone, with the files below, which it needs",
        read=boolean,
    ),
    TritonFlag(
        "grpc-use-ssl-mutual", "serves TLS there to clients with a certificate of `--tls-client-ca` alone", read=boolean
    ),
    TritonFlag("grpc-server-cert", "`--tls-cert`, if TLS is on"),
    TritonFlag("grpc-server-key", "`--tls-key`, if TLS is on"),
    TritonFlag("grpc-root-cert", "`--tls-client-ca`, if TLS is mutual"),
    TritonFlag(
        "grpc-keepalive-time",
        "`--limit keepalive_time`, which has seconds; by default 300, where Triton has 7,200",
        setting=LIMIT + "keepalive_time",
        read=_seconds,
    ),
    TritonFlag(
        "grpc-keepalive-timeout",
        "`--limit keepalive_timeout`, which has seconds",
        setting=LIMIT + "keepalive_timeout",
        read=_seconds,
    ),
    TritonFlag(
        "grpc-keepalive-permit-without-calls",
        "silent connections are asked, with calls or without",
        _NONE,
        read=boolean,
        harmless=True,
    ),
    TritonFlag("grpc-http2-max-pings-without-data", _PINGS, _NONE),
    TritonFlag("grpc-http2-min-recv-ping-interval-without-data", _PINGS, _NONE),
    TritonFlag("grpc-http2-max-ping-strikes", _PINGS, _NONE),
    TritonFlag(
        "grpc-max-connection-age",
        "`--limit connection_age`, which has seconds",
        setting=LIMIT + "connection_age",
        read=_seconds,
    ),
    TritonFlag(
        "grpc-max-connection-age-grace",
        "`--limit connection_age_grace`, which has seconds",
        setting=LIMIT + "connection_age_grace",
        read=_seconds,
    ),
    TritonFlag(
        "grpc-infer-thread-count",
        "`--processing-cores` sets the number of workers; more than 1 pays on free-threaded Python",
        _NONE,
    ),
    TritonFlag("grpc-infer-allocation-pool-size", "nothing is kept per request", _NONE),
    TritonFlag("grpc-max-response-pool-size", "nothing is kept per request", _NONE),
    # HTTP
    TritonFlag("allow-http", "`false` is `--http-addr off`; the port of gRPC serves HTTP as well", read=boolean),
    TritonFlag("http-address", "the host of `--http-addr`, by default `0.0.0.0`"),
    TritonFlag("http-port", "the port of `--http-addr`, by default 8000", read=_port),
    TritonFlag("reuse-http-port", "`--reuse-port http`; `true` with the other flag", read=boolean),
    TritonFlag("http-thread-count", "`--processing-cores` sets the number of workers", _NONE),
    TritonFlag("http-max-input-size", "64 MiB by default"),
    TritonFlag("http-header-forward-pattern", "Python models read them as parameters; names in any case"),
    TritonFlag("http-restricted-api", "no restriction by default; what `--grpc-restricted-protocol` names holds too"),
    # Metrics
    TritonFlag("allow-metrics", "`false` is `--metrics-addr off`", read=boolean),
    TritonFlag("metrics-address", "the host of `--metrics-addr`, by default that for HTTP"),
    TritonFlag(
        "metrics-port", "the port of `--metrics-addr`; by default 8002, if the command is `tritonserver`", read=_port
    ),
    TritonFlag("allow-cpu-metrics", "all metrics are always there", _NONE, read=boolean, harmless=True),
    TritonFlag(
        "allow-gpu-metrics",
        "all metrics are always there, those of GPUs with the extra `gpu`",
        _NONE,
        read=boolean,
        harmless=True,
    ),
    TritonFlag("metrics-interval-ms", "metrics are read when they are asked for, GPUs every two seconds", _NONE),
    TritonFlag("metrics-config", "latencies are histograms, from which Prometheus makes quantiles", _NONE),
    # Logs
    TritonFlag("log-verbose", "`--log-level debug` above 0; at run time LogSettings, as with Triton", read=_verbosity),
    TritonFlag("log-info", "`false` is `--log-level warning`, without verbose lines", read=boolean),
    TritonFlag("log-warning", "`false` is `--log-level error`, if the level info is off too", read=boolean),
    TritonFlag(
        "log-error",
        "errors are always logged, until LogSettings turns them off",
        _NONE,
        read=boolean,
        harmless=True,
    ),
    TritonFlag("log-format", "`default` is `text`; there is `json` too"),
    TritonFlag("log-file", "the log goes to standard error; write `2> FILE`", _NONE, harmless=""),
    # Traces
    TritonFlag(
        "trace-config",
        "`mode=opentelemetry` with `level`, `rate`, `count` and `opentelemetry,url` is `--trace-level`, "
        "`--trace-rate`, `--trace-count` and `--trace-endpoint`. Other settings have no effect, nor has the mode "
        "`triton`: no files are written. See [tracing.md](tracing.md)",
    ),
    TritonFlag("trace-level", "see [tracing.md](tracing.md)"),
    TritonFlag("trace-rate", "see [tracing.md](tracing.md)"),
    TritonFlag("trace-count", "see [tracing.md](tracing.md)"),
    TritonFlag("trace-file", _NO_FILE, _NONE),
    TritonFlag("trace-log-frequency", _NO_FILE, _NONE),
    # What runs models
    TritonFlag(
        "backend-config",
        "`onnxruntime,intra_op_thread_count` and `onnxruntime,inter_op_thread_count` are `--ort-intra-threads` and "
        "`--ort-inter-threads`, by default 1. Other settings have no effect: instead of `default-max-batch-size`, "
        "which is 64, write `max_batch_size`",
    ),
    TritonFlag("backend-directory", _NO_PLUGINS, _NONE),
    TritonFlag("repoagent-directory", _NO_PLUGINS, _NONE),
    TritonFlag("cache-config", "`local,size=BYTES` is `--response-cache-byte-size BYTES`; there is no other cache"),
    TritonFlag("cache-directory", _NO_PLUGINS, _NONE),
    TritonFlag("response-cache-byte-size", "see [response-cache.md](response-cache.md)"),
    TritonFlag("rate-limit", "see [deadlines.md](deadlines.md#the-rate-limiter)"),
    TritonFlag("rate-limit-resource", "the CPU is device 0; each of several processes has the resources for itself"),
    TritonFlag("host-policy", "`--cpu-pinning` pins threads to CPUs", _NONE),
    TritonFlag("pinned-memory-pool-byte-size", _ORT_POOLS, _NONE),
    TritonFlag("cuda-memory-pool-byte-size", _ORT_POOLS, _NONE),
    TritonFlag("cuda-virtual-address-size", _ORT_POOLS, _NONE),
    TritonFlag("buffer-manager-thread-count", "a request is copied once, by the worker that read it", _NONE),
    TritonFlag("min-supported-compute-capability", "ONNX Runtime decides which GPUs it can use", _NONE),
    TritonFlag("enable-peer-access", "ONNX Runtime decides how it uses GPUs", _NONE),
    TritonFlag("allow-client-shm", "not with `--processes`; see [shared-memory.md](shared-memory.md)"),
    # Clouds
    TritonFlag("allow-sagemaker", _NO_SAGEMAKER, _REFUSED, read=boolean, harmless=False, remedy="leave the flag out"),
    TritonFlag("sagemaker-port", _NO_SAGEMAKER, _NONE),
    TritonFlag("sagemaker-safe-port-range", _NO_SAGEMAKER, _NONE),
    TritonFlag("sagemaker-thread-count", _NO_SAGEMAKER, _NONE),
    TritonFlag("allow-vertex-ai", _NO_VERTEX, _REFUSED, read=boolean, harmless=False, remedy="leave the flag out"),
    TritonFlag("vertex-ai-port", _NO_VERTEX, _NONE),
    TritonFlag("vertex-ai-thread-count", _NO_VERTEX, _NONE),
    TritonFlag("vertex-ai-default-model", _NO_VERTEX, _NONE),
)

#: The flags, by name.
TRITON_FLAGS: Final[Mapping[str, TritonFlag]] = MappingProxyType({flag.name: flag for flag in _ROWS})
