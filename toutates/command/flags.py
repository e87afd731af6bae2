"""Every setting of the server, in one table. The parser, ``--help``, environment variables, configuration files and
docs/flags.md are made from it.

A new flag is an entry here. Its value gets to the server without further code if ``Options`` has a field of its name.
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
    byte_rate,
    byte_size,
    cache_size,
    choice,
    cpus,
    hosts,
    interval,
    levels,
    libraries,
    model_name,
    names,
    origins,
    positive,
    providers,
    rate_limit,
    resource_limit,
    seconds,
    seconds_or_never,
    share,
    shared_ports,
    url_prefixes,
    whole,
    whole_or_auto,
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
        name: the flag without its dashes, which is also the key in a file; for a limit, NAME in ``--limit NAME=VALUE``.
        metavar: the word for its value in ``--help``.
        help: what it does, a verb first; for a limit, what is limited.
        default: the value of a flag that nobody sets, as text; None if there is none.
        read: turns the text of a value into the value.
        unset: shown as the default where ``default`` is None.
        option: the field that takes the value, of ``Options``, or of ``Limits``; "" for the field of the flag's name.
        repeatable: whether it may be given several times; then its value is a tuple.
        bare: the text of the value if the flag is given without one; None if it needs one.
        shown: makes a text without secrets of the value's text.
        old: of a limit, the former flag that sets it too.
        words: what the value may be, where it is one of a few words; shells complete them.
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
    words: tuple[str, ...] = ()

    @property
    def default_text(self) -> str:
        """The default as ``--help`` shows it."""
        return self.unset if self.default is None else self.default

    @property
    def default_value(self) -> Any:
        """The value of a flag that nobody sets."""
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


#: All flags, by the title of their group in ``--help``.
GROUPS: Final[Mapping[str, tuple[Flag, ...]]] = {
    "models": (
        Flag(
            "model-repository",
            "DIR",
            "serve this folder, or s3://, gs://, as://, hf://, oci:// or https:// and a place there; repeatable",
            unset="required",
            repeatable=True,
        ),
        Flag(
            "model-name",
            "NAME",
            "serve a model.onnx that lies alone in the repository's own directory by this name",
            read=model_name,
            unset="the directory's name",
        ),
        Flag(
            "wait-for-repository",
            "SECONDS",
            "wait up to SECONDS seconds at the start for directories of models that are not there",
            read=seconds,
            unset="10, where the directory above is there",
            option="wait_for_repository_s",
        ),
        Flag("load-models", "NAMES", "serve only these models, separated by commas", read=names, unset="all"),
        Flag(
            "model-control-mode",
            "MODE",
            "change models never (none), when files change (poll), by RPC (explicit), or for requests (on-demand)",
            "none",
            lambda text: choice(*CONTROL_MODES)(text.lower()),
            words=tuple(CONTROL_MODES),
        ),
        Flag(
            "repository-poll-secs",
            "SECONDS",
            "look for changed files (poll) or new models (on-demand) every SECONDS seconds",
            "15",
            interval,
            option="repository_poll_s",
        ),
        Flag(
            "load-model",
            "NAME",
            "load this model at the start, in the modes explicit and on-demand; '*' loads all; repeatable",
            repeatable=True,
        ),
        Flag(
            "model-memory",
            "BYTES",
            "keep models of at most BYTES in memory, in the mode on-demand; K, M, G and T may follow",
            read=byte_size,
            unset="no bound",
        ),
        Flag(
            "model-min-stay",
            "SECONDS",
            "keep a model in memory for SECONDS at least, in the mode on-demand",
            "1",
            seconds,
            option="model_min_stay_s",
        ),
        Flag(
            "model-load-thread-count",
            "N",
            "load up to N models at the same time",
            "1",
            positive,
            option="parallel_loads",
        ),
        Flag(
            "model-load-retry-count",
            "N",
            "load a version that could not be loaded again, up to N times, unless its configuration is at fault",
            "0",
            whole(0),
            option="load_retries",
        ),
        Flag(
            "strict-readiness", "BOOL", "report the server as not ready while a model cannot be served", "true", boolean
        ),
        Flag(
            "exit-on-error",
            "BOOL",
            "exit if a model cannot be loaded or a repository cannot be read at the start",
            "false",
            boolean,
        ),
    ),
    "models on S3": (
        Flag("s3-bucket", "NAME", "serve the models in this bucket, as --model-repository s3://NAME does"),
        Flag("s3-prefix", "PREFIX", "serve only the models below this prefix of --s3-bucket"),
        Flag(
            "s3-endpoint", "URL", "use this S3 service for repositories on S3 that name none", unset="what boto3 finds"
        ),
        Flag("s3-region", "NAME", "use this region for all repositories on S3", unset="what boto3 finds"),
        Flag(
            "model-cache-dir",
            "DIR",
            "keep models downloaded from S3 or the Hugging Face Hub in this folder, and copies of weights in use",
            read=_path,
            unset="$XDG_CACHE_HOME/toutates, or ~/.cache/toutates",
        ),
        Flag(
            "response-cache-byte-size",
            "BYTES",
            "keep answers of models with response_cache, the least recently used left out first; 0 keeps none",
            "0",
            cache_size,
            option="response_cache_bytes",
        ),
        Flag(
            "model-cache-size",
            "BYTES",
            "keep at most this many bytes of downloaded models; the least recently used are removed first",
            "68719476736",
            positive,
        ),
        Flag(
            "download-min-rate",
            "BYTES",
            "ask again, and give up after some times, where fewer bytes of a file come in a second; 0 for any",
            "1K",
            byte_rate,
        ),
    ),
    "turns of models": (
        Flag(
            "rate-limit",
            "MODE",
            "have executors wait for resources and take turns by priority (execution_count), or not (off)",
            "off",
            rate_limit,
        ),
        Flag(
            "rate-limit-resource",
            "NAME:COUNT[:DEVICE]",
            "how many there are of a resource, on each device or on one; repeatable",
            read=resource_limit,
            unset="as many as an instance needs at most",
            option="rate_limit_resources",
            repeatable=True,
        ),
    ),
    "ONNX Runtime": (
        Flag(
            "execution-providers",
            "LIST",
            "run models on these providers, by priority and separated by commas: cpu, cuda, tensorrt",
            "auto",
            providers,
        ),
        Flag(
            "custom-op-libraries",
            "PATHS",
            "load these libraries of custom operators, of a directory those that models name, separated by commas",
            read=libraries,
        ),
        Flag(
            "allow-pickle",
            "BOOL",
            "let backends load files of models that may hold pickles, which run the code of whoever wrote them",
            "false",
            boolean,
            bare="true",
        ),
        Flag(
            "map-weights",
            "BOOL",
            "map weights beside ONNX graphs from their files, which nobody may write to then, not from copies",
            "false",
            boolean,
            bare="true",
        ),
        Flag("trt-op-types-to-exclude", "OPS", "do not run these operator types on TensorRT, separated by commas"),
        Flag("trt-min-subgraph-size", "N", "run only subgraphs of at least N nodes on TensorRT", read=positive),
        Flag("ort-intra-threads", "N", "use N threads within one operator, per session", "1", positive),
        Flag("ort-inter-threads", "N", "run up to N operators at the same time, per session", "1", positive),
    ),
    "CPUs and threads": (
        Flag(
            "processes",
            "N",
            "serve with N processes on the same ports, each of which loads all models; auto for one per CPU",
            "1",
            whole_or_auto,
        ),
        Flag(
            "processing-cores",
            "N",
            "start N worker threads, which read, batch and answer requests",
            read=positive,
            unset="1 with the GIL, else one per CPU that executors leave",
        ),
        Flag(
            "executor-threads",
            "N",
            "run the batches of all ONNX models on the CPU with N threads",
            read=positive,
            unset="one per CPU that the process may use, 2 at least",
        ),
        Flag("executor-cpus", "N", "reserve N CPUs for executors, which share them", "1", positive),
        Flag(
            "cpu-pinning",
            "CPUS",
            "pin each thread to a CPU: of these, such as 0-3,8, or of all that the process may use",
            read=cpus,
            unset="off",
            bare="all",
        ),
    ),
    "gRPC": (
        Flag("grpc-addr", "ADDR", "serve gRPC on this HOST:PORT", "0.0.0.0:8001", address),
        Flag(
            "reuse-port",
            "WHICH",
            "share ports with servers of the same user that do so too: true (both), grpc, http or false",
            "false",
            shared_ports,
            bare="true",
            option="shared_ports",
        ),
        Flag(
            "limit",
            "NAME=VALUE",
            "limit connections, requests, memory or time; --help-limits lists the names; repeatable",
            unset="",
            repeatable=True,
        ),
        Flag(
            "max-inflight-requests",
            "N",
            "refuse inference requests while N are accepted and not yet answered",
            read=positive,
            unset="no limit",
        ),
        Flag(
            "allow-client-shm",
            "BOOL",
            "let clients register shared memory of this machine, and name it in requests in place of tensors",
            "false",
            boolean,
            bare="true",
        ),
        Flag(
            "grpc-restricted-protocol",
            "PROTOCOLS:KEY=VALUE",
            "allow PROTOCOLS only to calls with the metadata triton-grpc-protocol-KEY: VALUE; repeatable",
            unset="no restriction",
            repeatable=True,
            shown=without_secret,
        ),
        Flag(
            "grpc-reflection",
            "BOOL",
            "answer server reflection, by which grpcurl and gateways call without a .proto file",
            "true",
            boolean,
        ),
        Flag(
            "grpc-compression",
            "NAME",
            "compress responses for clients that accept it: none, gzip or deflate",
            "none",
            choice("none", "gzip", "deflate"),
            words=("none", "gzip", "deflate"),
        ),
        Flag(
            "grpc-header-forward-pattern",
            "REGEX",
            "give models the metadata of calls whose names this regular expression matches, as parameters",
            unset="none",
            option="grpc_forwarded",
        ),
        Flag(
            "access-file",
            "FILE",
            "let in only whom this file names, by API keys and tokens, with groups, models and quotas",
            read=_path,
            unset="everybody",
        ),
        Flag(
            "traffic-file",
            "FILE",
            "aliases of models, and how requests are split between versions and copied",
            read=_path,
            unset="`traffic.yaml` in the repository",
        ),
        Flag("server-id", "NAME", "report this name in ServerMetadata", "triton"),
        Flag(
            "shutdown-delay",
            "SECONDS",
            "after SIGTERM serve for SECONDS seconds more, and say that the server is not ready",
            "0",
            seconds,
            option="shutdown_delay_s",
        ),
        Flag(
            "shutdown-grace",
            "SECONDS",
            "then wait up to SECONDS seconds for calls to end; a second signal ends them at once",
            "30",
            seconds,
            option="shutdown_grace_s",
        ),
    ),
    "HTTP": (
        Flag(
            "http-addr",
            "ADDR",
            "serve REST (the v2 protocol) on this HOST:PORT, or off; the port of --grpc-addr speaks it too",
            "0.0.0.0:8000",
            address_or_off,
        ),
        Flag(
            "http-max-input-size",
            "BYTES",
            "take JSON, and inputs without JSON, of up to BYTES bytes",
            "67108864",
            positive,
        ),
        Flag(
            "http-restricted-api",
            "GROUPS:KEY=VALUE",
            "allow GROUPS of endpoints only to requests with the header KEY: VALUE; repeatable",
            unset="no restriction",
            repeatable=True,
            shown=without_secret,
        ),
        Flag(
            "api-key-file",
            "FILE",
            "let only callers with one of the keys in this file, one in each line, use the APIs for text",
            read=_path,
            unset="everybody",
        ),
        Flag(
            "cors-origin",
            "ORIGIN,...",
            "let pages of these origins, such as https://app.example, read answers over HTTP (CORS); '*' for all",
            read=origins,
            unset="none",
        ),
        Flag(
            "http-half-close",
            "BOOL",
            "answer clients of HTTP/1.1 that end their side of the connection, as `nc -N` does",
            "false",
            boolean,
            bare="true",
        ),
        Flag(
            "http-header-forward-pattern",
            "REGEX",
            "give models the header fields whose names this regular expression matches, as parameters",
            unset="none",
        ),
    ),
    "TorchServe": (
        Flag(
            "torchserve-api",
            "BOOL",
            "serve TorchServe's /ping and /predictions on the ports of REST, and its management API",
            "false",
            boolean,
            bare="true",
        ),
        Flag(
            "torchserve-management-addr",
            "ADDR",
            "serve TorchServe's management API on this HOST:PORT, with --torchserve-api; off for none",
            "127.0.0.1:8081",
            address_or_off,
        ),
        Flag(
            "torchserve-model-store",
            "DIR",
            "let the management API register archives of this folder",
            read=_path,
            unset="none",
        ),
        Flag(
            "torchserve-allowed-urls",
            "PREFIXES",
            "let it download archives from URLs that begin so, separated by commas: https://HOST/PATH/",
            read=url_prefixes,
            unset="none",
        ),
    ),
    "TLS": (
        Flag("tls-cert", "FILE", "serve TLS with this certificate and its intermediates (PEM)", unset="no TLS"),
        Flag("tls-key", "FILE", "use this private key of the certificate (PEM, not encrypted)", unset="no TLS"),
        Flag(
            "tls-client-ca",
            "FILE",
            "accept only clients with a certificate of these authorities (PEM)",
            unset="clients need none",
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
            "record traces (TIMESTAMPS, or TENSORS, which is the same) or none (OFF); repeatable",
            read=choice(*LEVEL_NAMES),
            words=tuple(LEVEL_NAMES),
            unset="TIMESTAMPS with another trace flag, else OFF",
            repeatable=True,
        ),
        Flag(
            "trace-rate",
            "N",
            "trace one of N requests, and every request whose caller records the trace",
            read=whole(0, 2**32 - 1),
            unset="1000",
        ),
        Flag(
            "trace-count",
            "N",
            "stop after N requests that --trace-rate has chosen; -1 for no end",
            read=whole(-1, 2**31 - 1),
            unset="-1",
        ),
    ),
    "monitoring": (
        Flag(
            "metrics-addr",
            "ADDR",
            "serve metrics, the status page and health probes on this HOST:PORT; off for none",
            "0.0.0.0:9090",
            address_or_off,
        ),
        Flag(
            "metrics-tls",
            "BOOL",
            "speak TLS on the address of --metrics-addr, with the certificate of --tls-cert",
            "false",
            boolean,
        ),
        Flag(
            "metrics-models",
            "N",
            "in /metrics show the N busiest models one by one, and all others as one",
            "200",
            positive,
        ),
        Flag(
            "debug-endpoints",
            "BOOL",
            "allow /debug on --metrics-addr to other machines than this one",
            "false",
            boolean,
            bare="true",
        ),
        Flag(
            "allowed-hosts",
            "NAME,...",
            "answer browsers by these host names too, such as those of a proxy on this machine",
            read=hosts,
            unset="addresses, localhost",
        ),
        Flag(
            "log-level",
            "LEVELS",
            "log from this level on: debug, info, warning or error; AREA=LEVEL sets one area: info,h2grpc=debug",
            "info",
            levels,
        ),
        Flag(
            "log-format",
            "FORMAT",
            "write the log as text, as text with times in UTC (ISO8601), or as json, an object per line",
            "text",
            choice("text", "ISO8601", "json", also={"default": "text"}),
            words=("text", "ISO8601", "json"),
        ),
        Flag(
            "access-log-rate",
            "SHARE",
            "log this share of inference requests: 0.01 for one of 100",
            "0",
            share,
        ),
    ),
    "configuration file": (
        Flag("config", "FILE", "read settings from this YAML file; flags and environment variables override it"),
    ),
}

#: The same flags, by name.
FLAGS: Final[Mapping[str, Flag]] = MappingProxyType({flag.name: flag for group in GROUPS.values() for flag in group})

#: Values of ``--limit``, by name. The names are those of the metric ``toutates_limit_hits_total``.
LIMITS: Final[Mapping[str, Flag]] = {
    limit.name: limit
    for limit in (
        Flag(
            "connections",
            "N",
            "connections open at the same time",
            "100000",
            positive,
            option="max_concurrent_connections",
            old="max-concurrent-connections",
        ),
        Flag(
            "streams",
            "N",
            "calls open at the same time on one connection",
            "100000",
            positive,
            option="max_concurrent_streams",
            old="max-concurrent-streams",
        ),
        Flag(
            "frame_size",
            "BYTES",
            "size of an HTTP/2 frame that a client may send, from 16384 to 16777215",
            "1048576",
            positive,
            option="max_frame_size",
            old="max-frame-size",
        ),
        Flag(
            "message_size",
            "BYTES",
            "size of a request as it is sent",
            "2147483647",
            positive,
            option="max_message_size",
            old="max-message-size",
        ),
        Flag(
            "decompressed_size",
            "BYTES",
            "size of a compressed request after its decompression",
            "67108864",
            positive,
            option="max_decompressed_size",
            old="max-decompressed-size",
        ),
        Flag(
            "connection_buffer",
            "BYTES",
            "memory for the requests under way of one connection",
            "2147483647",
            positive,
            option="max_buffered_bytes",
            old="max-connection-buffered-bytes",
        ),
        Flag(
            "server_buffer",
            "BYTES",
            "memory for the requests under way and the unread responses of all connections",
            read=positive,
            unset="half of the memory that the process may use",
            option="max_buffered_bytes",
            old="max-buffered-bytes",
        ),
        Flag(
            "resets",
            "N",
            "calls that a connection may cancel per second, beyond one of two; five times as many in a burst",
            "200",
            _resets,
            option="resets",
            old="max-resets-per-second",
        ),
        Flag(
            "handshake_timeout",
            "SECONDS",
            "time from accepting a connection to the end of its handshakes; 0 for no limit",
            "20",
            seconds_or_never,
            option="handshake_timeout_s",
            old="handshake-timeout",
        ),
        Flag(
            "stall_timeout",
            "SECONDS",
            "time without progress of a request that has begun or of an unread response; 0 for no limit",
            "60",
            seconds_or_never,
            option="stall_timeout_s",
            old="stall-timeout",
        ),
        Flag(
            "connection_idle",
            "SECONDS",
            "time without a call after which a client is told to leave; 0 for never",
            "0",
            seconds_or_never,
            option="max_idle_s",
            old="max-connection-idle",
        ),
        Flag(
            "connection_age",
            "SECONDS",
            "age of a connection at which its client is told to leave, 10 % more or less; 0 for never",
            "0",
            seconds_or_never,
            option="max_age_s",
            old="max-connection-age",
        ),
        Flag(
            "connection_age_grace",
            "SECONDS",
            "time that the calls of a client get after it was told to leave; 0 for no limit",
            "0",
            seconds_or_never,
            option="max_age_grace_s",
            old="max-connection-age-grace",
        ),
        Flag(
            "keepalive_time",
            "SECONDS",
            "silence after which a client is asked whether it is still there; 0 for never",
            "300",
            seconds_or_never,
            option="keepalive_time_s",
            old="keepalive-time",
        ),
        Flag(
            "keepalive_timeout",
            "SECONDS",
            "time for the answer to that, before the connection is closed; 0 for no limit",
            "20",
            seconds_or_never,
            option="keepalive_timeout_s",
            old="keepalive-timeout",
        ),
    )
}
#: Begins the name of a limit where limits and flags are in one mapping: ``limit.connections``.
LIMIT: Final = "limit."

#: Former flags, each with the setting of the limit that it still sets.
OLD_LIMITS: Final[Mapping[str, str]] = MappingProxyType({limit.old: LIMIT + name for name, limit in LIMITS.items()})

#: Former names, and the settings that they still set. A setting that is given by its own name overrides them.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"executor-cores": ("model-load-thread-count", "executor-cpus")}
    | {old: (setting,) for old, setting in OLD_LIMITS.items()}
)

#: Flags of the original server that have no meaning here.
REFUSED: Final = ("sqpoll-enabled", "sqpoll-idle-ms")
