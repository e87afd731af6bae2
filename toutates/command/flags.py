"""Every setting of the server, in one table: it gives the parser, ``--help``, environment variables and configuration
files their names, and docs/flags.md its rows.

A new flag is an entry here. Where the server's ``Options`` have a field of the same name, nothing else is to be done to
hand its value on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from toutates.api.restrictions import without_secret
from toutates.command.values import (
    Reader,
    address,
    address_or_off,
    boolean,
    choice,
    cpus,
    levels,
    libraries,
    names,
    positive,
    providers,
    seconds,
    seconds_or_never,
    share,
    whole,
)
from toutates.h2grpc import Allowance
from toutates.infer.tracing.configuration import LEVEL_NAMES
from toutates.repositories.control.modes import CONTROL_MODES

__all__ = ["ALIASES", "FLAGS", "GROUPS", "LIMIT", "LIMITS", "OLD_LIMITS", "REFUSED", "Flag", "variable"]


def _same(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting.

    Attributes:
        name: the flag's without its dashes, which is the key in a file; of a limit, the NAME in ``--limit NAME=VALUE``.
        metavar: what stands for its value in texts.
        help: what it does, in one line.
        default: what holds where nobody sets it, as it would be written; None for nothing.
        read: turns the text of a value into the value.
        unset: what it means that nobody sets it, where there is no default.
        option: the field of ``Options``, or for a limit of ``Limits``, that takes the value; "" for that of its name.
        repeatable: whether it may be given several times; then its value is a tuple.
        bare: the value of the flag without one; None if it needs one.
        shown: the value as others may see it.
        old: the flag that sets a limit too.
    """

    name: str
    metavar: str
    help: str
    default: str | None = None
    read: Reader = _same
    unset: str = "none"
    option: str = ""
    repeatable: bool = False
    bare: str | None = None
    shown: Callable[[str], str] = _same
    old: str = ""

    @property
    def default_text(self) -> str:
        """What holds where nobody sets it, for people."""
        return self.unset if self.default is None else self.default

    @property
    def default_value(self) -> Any:
        """The same as a value."""
        if self.default is None:
            return () if self.repeatable else None
        return self.read(self.default)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def variable(name: str) -> str:
    """The environment variable of a flag."""
    return "TOUTATES_" + name.upper().replace("-", "_")


def _resets(text: str) -> Allowance:
    per_second = positive(text)
    return Allowance(5 * per_second, per_second, per_call=0.5)


#: By the titles of ``--help``.
GROUPS: Final[Mapping[str, tuple[Flag, ...]]] = {
    "models": (
        Flag(
            "model-repository",
            "DIR",
            "serve the models in this folder of MODEL/VERSION/model.onnx, or s3://BUCKET/PREFIX; repeatable",
            unset="required",
            repeatable=True,
        ),
        Flag("load-models", "NAMES", "serve only these models, separated by commas", read=names, unset="all"),
        Flag(
            "model-control-mode",
            "MODE",
            "change models never (none), when their files change (poll), or by RPC (explicit)",
            "none",
            choice(*CONTROL_MODES),
        ),
        Flag(
            "repository-poll-secs",
            "SECONDS",
            "look for changes this often, with poll",
            "15",
            positive,
            option="repository_poll_s",
        ),
        Flag(
            "load-model",
            "NAME",
            "load this model at the start, with explicit; '*' alone is all; repeatable",
            repeatable=True,
        ),
        Flag(
            "model-load-thread-count",
            "N",
            "load so many models at the same time",
            "1",
            positive,
            option="parallel_loads",
        ),
        Flag("strict-readiness", "BOOL", "be not ready while a model cannot be served", "true", boolean),
        Flag(
            "exit-on-error",
            "BOOL",
            "end where a model cannot be loaded or a repository cannot be read at the start",
            "false",
            boolean,
        ),
    ),
    "models on S3": (
        Flag("s3-bucket", "NAME", "serve the models in this bucket, like s3://NAME"),
        Flag("s3-prefix", "PREFIX", "look for them below this prefix of --s3-bucket"),
        Flag("s3-endpoint", "URL", "ask this S3 service, for all repositories on S3", unset="boto3's"),
        Flag("s3-region", "NAME", "look for the buckets in this region", unset="boto3's"),
        Flag(
            "model-cache-dir",
            "DIR",
            "keep downloads here",
            read=_path,
            unset="$XDG_CACHE_HOME/toutates, or ~/.cache/toutates",
        ),
        Flag(
            "model-cache-size",
            "BYTES",
            "keep so many bytes of downloads; the least recently used go first",
            "68719476736",
            positive,
        ),
    ),
    "ONNX Runtime": (
        Flag(
            "execution-providers",
            "LIST",
            "run models on cpu, cuda, tensorrt: by priority, separated by commas",
            "auto",
            providers,
        ),
        Flag(
            "custom-op-libraries",
            "PATHS",
            "load these libraries of custom operators, separated by commas",
            read=libraries,
        ),
        Flag("trt-op-types-to-exclude", "OPS", "keep these operator types from TensorRT, separated by commas"),
        Flag("trt-min-subgraph-size", "N", "leave smaller subgraphs to others than TensorRT", read=positive),
        Flag("ort-intra-threads", "N", "run each operator on so many threads, per session", "1", positive),
        Flag("ort-inter-threads", "N", "run so many operators at the same time, per session", "1", positive),
    ),
    "cores": (
        Flag(
            "processing-cores",
            "N",
            "run so many worker threads, which read, batch and answer requests",
            read=positive,
            unset="1 with the GIL, else what others leave",
        ),
        Flag("executor-cpus", "N", "keep so many CPUs for executors, which share them", "1", positive),
        Flag(
            "cpu-pinning",
            "CPUS",
            "pin each thread to a CPU: of all that the process may use, or of CPUS, such as 0-3,8",
            read=cpus,
            unset="off",
            bare="all",
        ),
    ),
    "gRPC": (
        Flag("grpc-addr", "ADDR", "listen on HOST:PORT", "0.0.0.0:8001", address),
        Flag(
            "limit",
            "NAME=VALUE",
            "bound connections, requests, memory or time: --help-limits lists the names; repeatable",
            unset="",
            repeatable=True,
        ),
        Flag(
            "max-inflight-requests",
            "N",
            "refuse inference requests while so many are accepted and not answered",
            read=positive,
            unset="no limit",
        ),
        Flag(
            "grpc-restricted-protocol",
            "PROTOCOLS:KEY=VALUE",
            "let only calls with the metadata triton-grpc-protocol-KEY: VALUE use PROTOCOLS; repeatable",
            unset="everybody may",
            repeatable=True,
            shown=without_secret,
        ),
        Flag(
            "grpc-compression",
            "NAME",
            "compress responses for clients that accept it: none, gzip or deflate",
            "none",
            choice("none", "gzip", "deflate"),
        ),
        Flag("server-id", "NAME", "report this name in ServerMetadata", "triton"),
        Flag(
            "shutdown-grace",
            "SECONDS",
            "let calls end for so long after SIGTERM; a second signal ends them",
            "30",
            seconds,
            option="shutdown_grace_s",
        ),
    ),
    "TLS": (
        Flag("tls-cert", "FILE", "serve TLS with this certificate and its intermediates, PEM", unset="no TLS"),
        Flag("tls-key", "FILE", "use this private key of the certificate, PEM, not encrypted", unset="no TLS"),
        Flag(
            "tls-client-ca",
            "FILE",
            "take only clients with a certificate of these authorities, PEM",
            unset="all may connect",
        ),
    ),
    "traces": (
        Flag(
            "trace-endpoint",
            "URL",
            "send traces by OTLP over HTTP to this collector, such as http://localhost:4318",
            unset="OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
        Flag(
            "trace-level",
            "LEVEL",
            "trace OFF, TIMESTAMPS or TENSORS; repeatable",
            read=choice(*LEVEL_NAMES),
            unset="TIMESTAMPS with another of these flags, else OFF",
            repeatable=True,
        ),
        Flag(
            "trace-rate",
            "N",
            "trace one of N requests, and those whose callers record the trace",
            read=whole(0, 2**32 - 1),
            unset="1000",
        ),
        Flag(
            "trace-count",
            "N",
            "stop after so many requests traced by the rate; -1 is never",
            read=whole(-1, 2**31 - 1),
            unset="-1",
        ),
    ),
    "watching the server": (
        Flag(
            "metrics-addr",
            "ADDR",
            "listen there for metrics, the status page and probes; off for none",
            "0.0.0.0:9090",
            address_or_off,
        ),
        Flag(
            "debug-endpoints",
            "BOOL",
            "let other machines than this one use /debug there",
            "false",
            boolean,
            bare="true",
        ),
        Flag(
            "log-level",
            "LEVELS",
            "log from debug, info, warning or error on; of an area by AREA=LEVEL: info,h2grpc=debug",
            "info",
            levels,
        ),
        Flag("log-format", "FORMAT", "log as text, or as json: one object per line", "text", choice("text", "json")),
        Flag("access-log-rate", "SHARE", "log this share of inference requests, such as 0.01; 1 for all", "0", share),
    ),
    "files": (
        Flag("config", "FILE", "read settings from this YAML file; flags and environment variables go before it"),
    ),
}

#: All flags, by name.
FLAGS: Final[Mapping[str, Flag]] = MappingProxyType({flag.name: flag for group in GROUPS.values() for flag in group})

#: Values of ``--limit``, by name. The names are those of the metric ``toutates_limit_hits_total``.
LIMITS: Final[Mapping[str, Flag]] = {
    limit.name: limit
    for limit in (
        Flag(
            "connections",
            "N",
            "connections open at once",
            "100000",
            positive,
            option="max_concurrent_connections",
            old="max-concurrent-connections",
        ),
        Flag(
            "streams",
            "N",
            "calls open at once on one connection",
            "100000",
            positive,
            option="max_concurrent_streams",
            old="max-concurrent-streams",
        ),
        Flag(
            "frame_size",
            "BYTES",
            "an HTTP/2 frame that a client may send, 16384 to 16777215",
            "32768",
            positive,
            option="max_frame_size",
            old="max-frame-size",
        ),
        Flag(
            "message_size",
            "BYTES",
            "a request, as sent",
            "2147483647",
            positive,
            option="max_message_size",
            old="max-message-size",
        ),
        Flag(
            "decompressed_size",
            "BYTES",
            "a compressed request, once decompressed",
            "67108864",
            positive,
            option="max_decompressed_size",
            old="max-decompressed-size",
        ),
        Flag(
            "connection_buffer",
            "BYTES",
            "requests under way that are held for one connection",
            "2147483647",
            positive,
            option="max_buffered_bytes",
            old="max-connection-buffered-bytes",
        ),
        Flag(
            "server_buffer",
            "BYTES",
            "requests under way and unread responses that are held for all clients",
            read=positive,
            unset="half of the memory that the process may use",
            option="max_buffered_bytes",
            old="max-buffered-bytes",
        ),
        Flag(
            "resets",
            "N",
            "calls that a connection may cancel a second, beyond one of two; five times as many at once",
            "200",
            _resets,
            option="resets",
            old="max-resets-per-second",
        ),
        Flag(
            "handshake_timeout",
            "SECONDS",
            "from accepting a connection to the end of its handshakes; 0 is no limit",
            "20",
            seconds_or_never,
            option="handshake_timeout_s",
            old="handshake-timeout",
        ),
        Flag(
            "stall_timeout",
            "SECONDS",
            "without progress of a request that has begun, or of unread responses; 0 is no limit",
            "60",
            seconds_or_never,
            option="stall_timeout_s",
            old="stall-timeout",
        ),
        Flag(
            "connection_idle",
            "SECONDS",
            "without a call, until the client is told to leave; 0 is never",
            "0",
            seconds_or_never,
            option="max_idle_s",
            old="max-connection-idle",
        ),
        Flag(
            "connection_age",
            "SECONDS",
            "until a client is told to leave, 10 % more or less; 0 is never",
            "0",
            seconds_or_never,
            option="max_age_s",
            old="max-connection-age",
        ),
        Flag(
            "connection_age_grace",
            "SECONDS",
            "for calls of a client that was told to leave; 0 is no limit",
            "0",
            seconds_or_never,
            option="max_age_grace_s",
            old="max-connection-age-grace",
        ),
        Flag(
            "keepalive_time",
            "SECONDS",
            "of silence, until the client is asked whether it is there; 0 is never",
            "300",
            seconds_or_never,
            option="keepalive_time_s",
            old="keepalive-time",
        ),
        Flag(
            "keepalive_timeout",
            "SECONDS",
            "for its answer, until the connection is closed; 0 is no limit",
            "20",
            seconds_or_never,
            option="keepalive_timeout_s",
            old="keepalive-timeout",
        ),
    )
}
#: What a limit is called beside the flags.
LIMIT: Final = "limit."

#: Flags of before, which set a limit.
OLD_LIMITS: Final[Mapping[str, str]] = MappingProxyType({limit.old: LIMIT + name for name, limit in LIMITS.items()})

#: Names of before, and what they set. Where the settings themselves are given, these hold.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"executor-cores": ("model-load-thread-count", "executor-cpus")}
    | {old: (setting,) for old, setting in OLD_LIMITS.items()}
)

#: Flags of the original server that have no meaning here.
REFUSED: Final = ("sqpoll-enabled", "sqpoll-idle-ms")
