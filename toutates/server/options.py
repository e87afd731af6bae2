"""Every setting of the server in one frozen record, and the exit codes of its process."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from toutates.api.rest.handler import RestSettings
from toutates.api.restrictions import RestrictedProtocol
from toutates.api.text.handler import TextSettings
from toutates.h2grpc import Limits
from toutates.infer.tracing.configuration import TraceOptions
from toutates.models.turns import Limit
from toutates.repositories.control.modes import ControlMode
from toutates.repositories.pace import LEAST_RATE
from toutates.repositories.specification import Specification
from toutates.system.address import Address
from toutates.system.logs.rendering import LogFormat

__all__ = [
    "DEFAULT_CACHE_SIZE",
    "DEFAULT_CONNECTIONS",
    "EXIT_FAILURE",
    "EXIT_OK",
    "EXIT_USAGE",
    "Options",
    "TlsFiles",
    "TorchServeOptions",
]

#: Bytes of downloads from S3 in the cache.
DEFAULT_CACHE_SIZE = 64 * 2**30
#: Connections that may be open where nobody says how many.
DEFAULT_CONNECTIONS = 100_000
#: Exit codes: a clean end, a failure, and settings that cannot be used.
EXIT_OK, EXIT_FAILURE, EXIT_USAGE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of the server's certificate, all in PEM form.

    Attributes:
        cert: the certificate, and its intermediates after it.
        key: its private key, not encrypted.
        client_ca: the authorities whose clients may connect; None lets all in.
        for_rest: whether the ports of REST and TorchServe speak TLS too, and not that of gRPC alone.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    for_rest: bool = True


@dataclass(frozen=True, slots=True)
class TorchServeOptions:
    """TorchServe's APIs.

    Attributes:
        management_addr: address of the management API; None for none.
        model_store: directory of the archives that it registers; None for none.
        allowed_urls: beginnings of the URLs that it may download archives from.
    """

    management_addr: Address | None = None
    model_store: Path | None = None
    allowed_urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """The values of all settings. ``toutates.command.flags`` describes the flags that set them.

    Attributes:
        model_repositories: directories and S3 locations, see ``toutates.repositories.specification``.
        model_name: of a model whose graph lies alone in a repository's directory; "" for the directory's name.
        model_cache_dir: for downloads from S3; None for the user's cache directory.
        model_cache_size: its largest size, bytes.
        wait_for_repository_s: seconds that the start waits for local repositories that are not there; None for ten,
            where the directory above is there.
        download_min_rate: at which each file has to come, bytes per second; 0 for any.
        load_models: names to load at the start; None for all. In the mode "poll", names to look for.
        load_model: those of ``load_models`` that --load-model names, for error messages.
        model_control_mode: when models change, see ``toutates.repositories.control.model_control``.
        repository_poll_s: seconds between two polls, or between two looks at the index of models.
        model_memory: bytes that models loaded on demand may take, together; None for no bound.
        model_min_stay_s: for so long one of them stays.
        strict_readiness: whether a model that cannot be served makes the server not ready.
        exit_on_error: whether a model that cannot be served at the start ends the server.
        execution_providers: as given, ``("auto",)`` or any of cpu, cuda, tensorrt, by priority.
        processes: number of processes that serve on the same ports; 0 for one per CPU.
        allow_client_shm: whether clients may register shared memory of this machine.
        allow_pickle: whether backends may load files of models that may hold pickles.
        map_weights: whether weights are mapped from their own files, which nobody may write to then.
        processing_cores: number of workers; None for the default of ``toutates.system.placement``.
        parallel_loads: how many models are loaded at the same time.
        load_retries: how often a version that could not be loaded is loaded again.
        executor_threads: threads that run batches of ONNX models on the CPU; None for one per CPU.
        executor_cpus: number of CPUs that executors share when pinned; without pinning, that workers leave free.
        cpu_pinning: CPUs to pin threads to, ``()`` for all that the process may use; None for no pinning.
        max_buffered_bytes: of all connections together, for slow clients; None for half of the memory.
        restricted_protocols: groups of RPCs that only callers with a secret may use.
        grpc_reflection: whether server reflection is offered.
        response_cache_bytes: of the response cache; 0 for none.
        rate_limit: whether runs are rated: "off" or "execution_count".
        rate_limit_resources: how many there are of resources that runs need.
        max_inflight_requests: inference requests accepted and not answered yet, at most; None for no limit.
        grpc_compression: ``gzip``, ``deflate``, or "" for none.
        grpc_forwarded: names of metadata that models get as parameters; None for none.
        tls: None for plaintext on all ports.
        tracing: where traces go, and what is traced.
        shared_ports: those that other servers of the same user may listen on too: "grpc", "http", or both.
        http_addr: address of REST; None for none but that of gRPC, which serves REST too.
        rest: of REST.
        torchserve: TorchServe's APIs; None for none.
        text: of the APIs for text.
        api_key_file: has the keys that let callers of the APIs for text in; None lets everybody in.
        access_file: says who may do what; None lets everybody in.
        traffic_file: has the rules of aliases and traffic; None for traffic.yaml in the repository.
        metrics_addr: address of the HTTP side; None for none.
        metrics_tls: whether it speaks TLS, with the server's certificate.
        metrics_models: how many models have series of their own in /metrics.
        debug_endpoints: whether /debug answers to other machines too.
        allowed_hosts: names by which this server is asked for beside its own.
        shutdown_delay_s: seconds that the server goes on after SIGTERM, not ready, before it drains.
        shutdown_grace_s: seconds that calls under way then get.
        log_level: levels of the log, see ``toutates.system.logs.levels``.
        log_format: "text", "ISO8601" for text with times in UTC, or "json".
        access_log_rate: share of inference requests that get a line in the log, from 0 to 1.
        shows_client: whether code that asks for the first model is printed once it is served.
        warnings: sentences for the log about flags that have no effect.
    """

    model_repositories: tuple[Specification, ...]
    model_name: str = ""
    model_cache_dir: Path | None = None
    model_cache_size: int = DEFAULT_CACHE_SIZE
    wait_for_repository_s: float | None = None
    download_min_rate: int = LEAST_RATE
    load_models: tuple[str, ...] | None = None
    load_model: tuple[str, ...] = ()
    model_control_mode: ControlMode = "none"
    repository_poll_s: float = 15.0
    model_memory: int | None = None
    model_min_stay_s: float = 1.0
    strict_readiness: bool = True
    exit_on_error: bool = False
    execution_providers: tuple[str, ...] = ("auto",)
    custom_op_libraries: tuple[Path, ...] = ()
    allow_pickle: bool = False
    map_weights: bool = False
    trt_op_types_to_exclude: str = ""
    trt_min_subgraph_size: int | None = None
    ort_intra_threads: int = 1
    ort_inter_threads: int = 1
    grpc_addr: Address = Address("0.0.0.0", 8001)
    processes: int = 1
    processing_cores: int | None = None
    parallel_loads: int = 1
    load_retries: int = 0
    executor_threads: int | None = None
    executor_cpus: int = 1
    cpu_pinning: tuple[int, ...] | None = None
    max_concurrent_connections: int = DEFAULT_CONNECTIONS
    max_buffered_bytes: int | None = None
    limits: Limits = field(default_factory=Limits)
    restricted_protocols: tuple[RestrictedProtocol, ...] = ()
    grpc_reflection: bool = True
    response_cache_bytes: int = 0
    rate_limit: str = "off"
    rate_limit_resources: tuple[Limit, ...] = ()
    max_inflight_requests: int | None = None
    allow_client_shm: bool = False
    grpc_compression: str = ""
    grpc_forwarded: re.Pattern[str] | None = None
    tls: TlsFiles | None = None
    tracing: TraceOptions = field(default_factory=TraceOptions)
    shared_ports: tuple[str, ...] = ()
    http_addr: Address | None = Address("0.0.0.0", 8000)
    rest: RestSettings = field(default_factory=RestSettings)
    torchserve: TorchServeOptions | None = None
    text: TextSettings = field(default_factory=TextSettings)
    api_key_file: Path | None = None
    access_file: Path | None = None
    traffic_file: Path | None = None
    metrics_addr: Address | None = Address("0.0.0.0", 9090)
    metrics_tls: bool = False
    metrics_models: int = 200
    debug_endpoints: bool = False
    allowed_hosts: tuple[str, ...] = ()
    server_id: str = "triton"
    shutdown_delay_s: float = 0.0
    shutdown_grace_s: float = 30.0
    log_level: str = "info"
    log_format: LogFormat = "text"
    access_log_rate: float = 0.0
    shows_client: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def reuse_port(self) -> bool:
        """Whether other servers of the same user may listen on one of the ports at least."""
        return bool(self.shared_ports)

    @property
    def rest_tls(self) -> bool:
        """Whether the ports of REST and TorchServe speak TLS."""
        return self.tls is not None and self.tls.for_rest

    @property
    def tensorrt(self) -> dict[str, str]:
        """The options of TensorRT, by ONNX Runtime's names."""
        chosen = {}
        if self.trt_op_types_to_exclude:
            chosen["trt_op_types_to_exclude"] = self.trt_op_types_to_exclude
        if self.trt_min_subgraph_size is not None:
            chosen["trt_min_subgraph_size"] = str(self.trt_min_subgraph_size)
        return chosen
