"""Our own metrics, and those of every process."""

from __future__ import annotations

from typing import Final

from toutates.observe.metrics.spec import Kind, MetricSpec, Presence, of_models

__all__ = ["OWN", "PROCESS"]

_VERSION: Final = ("model", "version")
_WORKER: Final = ("worker",)
_PROCESS: Final = ("process",)

OWN: Final = (
    MetricSpec(
        "toutates_info",
        Kind.INFO,
        ("version", "python", "gil"),
        "1",
        "The version of the server, the version of Python, and whether the GIL is on.",
        '`gil="on"` on a free-threaded Python: an extension module switched the GIL on; the log names it.',
    ),
    MetricSpec(
        "toutates_ready",
        Kind.GAUGE,
        (),
        "0 or 1",
        "Whether the server is ready, as ServerReady says.",
        "0: a model cannot be served, or the server is stopping. RepositoryIndex and the log have the reason.",
    ),
    MetricSpec(
        "toutates_model_versions",
        Kind.GAUGE,
        ("state",),
        "versions",
        "Model versions by their state in RepositoryIndex, without those that were unloaded by request.",
        "UNAVAILABLE rises: a version cannot be loaded, or lost its executors; RepositoryIndex has the reason.",
    ),
    MetricSpec(
        "toutates_connections",
        Kind.GAUGE,
        _WORKER,
        "connections",
        "Open connections.",
        "Uneven over the workers: clients have too few connections. Rising without end: clients do not close them; "
        "`--limit connection_idle` ends those without calls.",
    ),
    MetricSpec(
        "toutates_connections_accepted_total",
        Kind.COUNTER,
        _WORKER,
        "connections",
        "Accepted connections.",
        "A high rate: clients connect for each call, which costs more than the call. They should keep their "
        "connections.",
    ),
    MetricSpec(
        "toutates_open_streams",
        Kind.GAUGE,
        _WORKER,
        "streams",
        "Open HTTP/2 streams, which are calls under way; counted every two seconds.",
        "Rising faster than the requests: clients do not read their answers, or keep streams open.",
    ),
    MetricSpec(
        "toutates_streams_total",
        Kind.COUNTER,
        _WORKER,
        "streams",
        "HTTP/2 streams that clients have opened, one for each call of any kind.",
        "More than `inference_requests_total`: the difference is health checks, metadata, and calls that were "
        "cancelled.",
    ),
    MetricSpec(
        "toutates_received_bytes_total",
        Kind.COUNTER,
        _WORKER,
        "bytes",
        "Bytes received on gRPC connections, without those that TLS adds; counted every two seconds.",
        "Its rate near the capacity of the network: the network is the bottleneck.",
    ),
    MetricSpec(
        "toutates_sent_bytes_total",
        Kind.COUNTER,
        _WORKER,
        "bytes",
        "Bytes sent on gRPC connections, without those that TLS adds; counted every two seconds.",
        "Its rate near the capacity of the network: the network is the bottleneck.",
    ),
    MetricSpec(
        "toutates_limit_hits_total",
        Kind.COUNTER,
        ("limit",),
        "times",
        "How often a client met a limit, by limit.",
        "[operating.md](operating.md#limits) describes the limits, and the log names the clients: attackers, broken "
        "clients, or your own, for which the limit is too low.",
    ),
    MetricSpec(
        "toutates_inflight_refusals_total",
        Kind.COUNTER,
        (),
        "requests",
        "Requests refused because of `--max-inflight-requests`.",
        "The server as a whole is overloaded: add servers, or raise the flag if memory allows.",
    ),
    MetricSpec(
        "toutates_text_answers_total",
        Kind.COUNTER,
        ("route", "status"),
        "requests",
        "Answers of the [APIs for text](text-apis.md), by route and HTTP status.",
        "Many with 401: keys are missing or wrong; 404: a model that is not served; 429: more load than the models "
        "take.",
        Presence.TEXTS,
    ),
    MetricSpec(
        "toutates_plan_cache_hits_total",
        Kind.COUNTER,
        (),
        "requests",
        "Inference requests whose plan was known. A request that is split over batches counts once in each.",
        "No action; see the misses.",
    ),
    MetricSpec(
        "toutates_plan_cache_misses_total",
        Kind.COUNTER,
        (),
        "requests",
        "Inference requests that had to be parsed in full, which costs ten times as much as a hit.",
        "A few for each kind of request and client are normal. More: parameters or names of requests change each "
        "time, or "
        "clients send typed contents instead of raw ones.",
    ),
    MetricSpec(
        "toutates_worker_cpu_seconds_total",
        Kind.COUNTER,
        _WORKER,
        "s",
        "CPU time of the worker's thread.",
        "Near 1 per second the worker is the bottleneck: spread the connections, on free-threaded Python raise "
        "`--processing-cores`, or add servers.",
    ),
    MetricSpec(
        "toutates_worker_loop_lag_seconds",
        Kind.GAUGE,
        _WORKER,
        "s",
        "Event-loop lag: how late the worker ran its last periodic task.",
        "Up to 0.01 s under load is normal. More: the worker is delayed by huge or typed requests, by the GIL, or for "
        "want of a free CPU. `/debug/profile` shows by what.",
    ),
    MetricSpec(
        "toutates_worker_loop_late_seconds_total",
        Kind.COUNTER,
        _WORKER,
        "s",
        "Event-loop lag of all periodic tasks, added up; there is one at least every two seconds.",
        "See `toutates_worker_loop_lag_seconds`; its rate shows lags that the gauge misses between two scrapes.",
    ),
    of_models(
        "toutates_executors",
        Kind.GAUGE,
        _VERSION,
        "executors",
        "Executors that the version has (`num_executors`).",
        "No action: it changes only with the configuration.",
    ),
    of_models(
        "toutates_executor_busy_seconds_total",
        Kind.COUNTER,
        _VERSION,
        "s",
        "Time in which the version's executors had a batch, added up.",
        "Its rate divided by `toutates_executors` is their utilisation. Near 1: raise `num_executors` if CPUs are "
        "free.",
    ),
    MetricSpec(
        "toutates_executor_deaths_total",
        Kind.COUNTER,
        (),
        "executors",
        "Executors whose thread died and was replaced.",
        "Above 0: a bug. The log has the traceback; [reliability.md](reliability.md#faults) says what follows.",
    ),
    of_models(
        "toutates_batch_fill_ratio",
        Kind.GAUGE,
        _VERSION,
        "0 to 1",
        "Rows of the batches that have run, divided by the rows that these had room for, since the version was loaded.",
        "Near 1: batches are full; raise `batch_size` if the time per row still falls. For a shorter period, divide "
        "the "
        "rates of `inference_batch_items`.",
    ),
    MetricSpec(
        "toutates_real_elements_total",
        Kind.COUNTER,
        _VERSION,
        "elements",
        "Elements of all rows that have run, along the dimension that is padded (tokens, of a text model).",
        "Its rate is the work that clients ask for.",
        Presence.PADDED,
    ),
    MetricSpec(
        "toutates_padded_elements_total",
        Kind.COUNTER,
        _VERSION,
        "elements",
        "The same with the padding, which is what was computed.",
        "Its rate divided by that of `toutates_real_elements_total` is what padding costs; up to 1.25 with the default "
        "buckets. Above: `buckets` are too few for these lengths.",
        Presence.PADDED,
    ),
    of_models(
        "toutates_batches_in_flight",
        Kind.GAUGE,
        _VERSION,
        "batches",
        "Batches that are open, waiting or running.",
        "At `toutates_batches_capacity` requests are refused if all are full. With many shapes there may be more.",
    ),
    of_models(
        "toutates_batches_capacity",
        Kind.GAUGE,
        _VERSION,
        "batches",
        "Batches that may be in flight (`capacity`).",
        "No action: it changes only with the configuration.",
    ),
    of_models(
        "toutates_lanes",
        Kind.GAUGE,
        _VERSION,
        "lanes",
        "Shapes of rows that have batches of their own.",
        "Many: requests of different shapes cannot share a batch. Clients should pad to a few shapes.",
    ),
    of_models(
        "toutates_model_memory_bytes",
        Kind.GAUGE,
        _VERSION,
        "bytes",
        "Memory of the version's batch buffers, without that of ONNX Runtime.",
        "It grows with `batch_size`, `capacity` and the number of shapes, and is kept for the next burst.",
    ),
    MetricSpec(
        "toutates_model_loads_total",
        Kind.COUNTER,
        (),
        "versions",
        "Model versions loaded, reloads included.",
        "Rising without a deployment: somebody changes the repository, or asks for loads.",
    ),
    MetricSpec(
        "toutates_model_load_failures_total",
        Kind.COUNTER,
        (),
        "versions",
        "Model versions that could not be loaded.",
        "The log and RepositoryIndex have the reason; `toutates check` finds it before a deployment.",
    ),
    MetricSpec(
        "toutates_model_reloads_total",
        Kind.COUNTER,
        (),
        "versions",
        "Loads of versions that replaced one that was served.",
        "See `toutates_model_loads_total`.",
    ),
    MetricSpec(
        "toutates_model_unloads_total",
        Kind.COUNTER,
        (),
        "versions",
        "Model versions that are no longer served, replaced ones included.",
        "See `toutates_model_loads_total`.",
    ),
    MetricSpec(
        "toutates_model_load_seconds_total",
        Kind.COUNTER,
        (),
        "s",
        "Time spent on loading versions, failures included.",
        "Divided by loads and failures it is the mean. `nv_model_load_duration_secs` has each version.",
    ),
    MetricSpec(
        "toutates_repository_answers",
        Kind.GAUGE,
        ("repository",),
        "0 or 1",
        "Whether the model repository could be read when it was last asked for its models.",
        "0: S3, the network or a disk is broken, or access is refused; the log says which. Models that are served from "
        "there stay served.",
    ),
    MetricSpec(
        "toutates_repository_listing_age_seconds",
        Kind.GAUGE,
        ("repository",),
        "s",
        "How long ago the repository listed the models that are served from it.",
        "With `poll`, more than a few times `--repository-poll-secs`: changes are not noticed, because the repository "
        "does not answer. In the other modes it is the time since the start, or, after a start without S3, since the "
        "listing that the cache had.",
    ),
    MetricSpec(
        "toutates_s3_downloads_total",
        Kind.COUNTER,
        (),
        "objects",
        "Objects downloaded from S3.",
        "Rising without a deployment: the cache is too small, or the servers do not share one.",
    ),
    MetricSpec(
        "toutates_s3_download_bytes_total",
        Kind.COUNTER,
        (),
        "bytes",
        "Bytes downloaded from S3.",
        "See `toutates_s3_downloads_total`. S3 charges for it.",
    ),
    MetricSpec(
        "toutates_s3_download_failures_total",
        Kind.COUNTER,
        (),
        "downloads",
        "Downloads of a model's objects that ended with an error, after all repetitions.",
        "S3 or the network is broken, or objects changed meanwhile; the log says which. Served models stay served.",
    ),
    MetricSpec(
        "toutates_s3_download_seconds_total",
        Kind.COUNTER,
        (),
        "s",
        "Time spent on downloads of models' objects, failures included.",
        "Bytes divided by it are the throughput.",
    ),
    MetricSpec(
        "toutates_cache_bytes",
        Kind.GAUGE,
        (),
        "bytes",
        "Size of the cache of models when room was last made in it.",
        "Near `toutates_cache_capacity_bytes` the least recently used models are removed: raise `--model-cache-size`.",
    ),
    MetricSpec(
        "toutates_cache_capacity_bytes",
        Kind.GAUGE,
        (),
        "bytes",
        "Largest size of the cache of models (`--model-cache-size`); 0 without models on S3.",
        "No action: it is constant.",
    ),
    MetricSpec(
        "toutates_log_lines_dropped_total",
        Kind.COUNTER,
        (),
        "lines",
        "Lines of the log that were not written, because they came too often or nobody read them in time.",
        "Something happens thousands of times; the log has the first lines of each kind, and how many followed.",
    ),
    MetricSpec(
        "toutates_traces_sent_total",
        Kind.COUNTER,
        (),
        "requests",
        "Requests whose spans the collector of traces has taken.",
        "Its rate should be that of `--trace-rate` and of callers that ask for traces.",
    ),
    MetricSpec(
        "toutates_traces_lost_total",
        Kind.COUNTER,
        (),
        "requests",
        "Requests whose spans were dropped because there were too many, or were not taken by the collector.",
        "The collector is down or too slow, or callers ask for more traces than can be sent; the log says which.",
    ),
    MetricSpec(
        "toutates_metrics_render_seconds",
        Kind.GAUGE,
        (),
        "s",
        "Time that it took to make the last text of the metrics.",
        "It grows with the number of models. A text is used again for 50 times as long: above 0.3 s, scrapes every "
        "15 s "
        "see some values twice.",
    ),
    MetricSpec(
        "toutates_process_up",
        Kind.GAUGE,
        _PROCESS,
        "0 or 1",
        "Whether the process serves and answers its parent.",
        "0: it starts, has died and is started again, or hangs; the log says which. The others serve meanwhile.",
        Presence.PROCESSES,
    ),
    MetricSpec(
        "toutates_process_restarts_total",
        Kind.COUNTER,
        _PROCESS,
        "starts",
        "How often the process was started again after it had died.",
        "Rising: the log says what killed it. SIGKILL that nobody sent is a want of memory: use fewer processes.",
        Presence.PROCESSES,
    ),
    MetricSpec(
        "toutates_process_cpu_seconds_total",
        Kind.COUNTER,
        _PROCESS,
        "s",
        "CPU time of the process; it begins at 0 when the process is started again.",
        "Near 1 per second on Python with a GIL: the process is the bottleneck; spread the connections, or add "
        "processes.",
        Presence.PROCESSES,
    ),
    MetricSpec(
        "toutates_process_resident_memory_bytes",
        Kind.GAUGE,
        _PROCESS,
        "bytes",
        "Resident memory of the process; pages that processes share count in each.",
        "One that grows alone: look at the connections that it has, by `toutates_connections`.",
        Presence.PROCESSES,
    ),
)

PROCESS: Final = tuple(
    MetricSpec(name, kind, (), unit, help_text, action)
    for name, kind, unit, help_text, action in (
        (
            "process_virtual_memory_bytes",
            Kind.GAUGE,
            "bytes",
            "Virtual memory size in bytes.",
            "No action: it says little.",
        ),
        (
            "process_resident_memory_bytes",
            Kind.GAUGE,
            "bytes",
            "Resident memory size in bytes.",
            "Rising for hours at the same load: see `toutates_model_memory_bytes` and `toutates_open_streams`.",
        ),
        (
            "process_start_time_seconds",
            Kind.GAUGE,
            "Unix time, s",
            "Start time of the process since unix epoch in seconds.",
            "A change: the server was restarted.",
        ),
        (
            "process_cpu_seconds_total",
            Kind.COUNTER,
            "s",
            "Total user and system CPU time spent in seconds.",
            "Its rate is the number of CPUs in use, workers, executors and ONNX Runtime's pools together.",
        ),
        (
            "process_open_fds",
            Kind.GAUGE,
            "files",
            "Number of open file descriptors.",
            "Near `process_max_fds` connections are no longer accepted (`toutates_limit_hits_total`).",
        ),
        ("process_max_fds", Kind.GAUGE, "files", "Maximum number of open file descriptors.", "Set by `ulimit -n`."),
    )
)
