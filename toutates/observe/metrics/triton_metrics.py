"""Triton's metrics."""

from __future__ import annotations

from typing import Final

from toutates.observe.metrics.spec import Kind, MetricSpec, Presence, of_models

__all__ = ["TRITON"]

_VERSION: Final = ("model", "version")
_GPU: Final = ("gpu_uuid",)

TRITON: Final = (
    of_models(
        "nv_inference_request_success",
        Kind.COUNTER,
        _VERSION,
        "requests",
        "Number of successful inference requests, all batch sizes.",
        "Constant while clients send: look at the failures and at `inference_requests_total`.",
    ),
    of_models(
        "nv_inference_request_failure",
        Kind.COUNTER,
        ("model", "reason", "version"),
        "requests",
        "Number of failed inference requests, by reason: REJECTED, CANCELED, BACKEND, OTHER.",
        "REJECTED: deadlines are shorter than the queue; add executors or servers. CANCELED: clients gave up. BACKEND: "
        "the model fails on its inputs; callers get ONNX Runtime's error. OTHER: the log has the reason.",
    ),
    of_models(
        "nv_inference_count",
        Kind.COUNTER,
        _VERSION,
        "inferences",
        "Number of inferences performed: a request of 8 rows adds 8.",
        "Divided by `nv_inference_exec_count` it is the mean batch size.",
    ),
    of_models(
        "nv_inference_exec_count",
        Kind.COUNTER,
        _VERSION,
        "batches",
        "Number of model executions performed.",
        "See `inference_batches_total`.",
    ),
    of_models(
        "nv_inference_request_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative inference request duration, from arrival to answer.",
        "Its rate divided by that of `nv_inference_request_success` is the mean latency.",
    ),
    of_models(
        "nv_inference_queue_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative inference queuing duration.",
        "Rising per request, which autoscalers look at: the model needs more executors or servers.",
    ),
    of_models(
        "nv_inference_compute_input_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative compute input duration; each request counts the time of its whole batch.",
        "See `inference_exec_start_seconds`.",
    ),
    of_models(
        "nv_inference_compute_infer_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative compute inference duration; each request counts the time of its whole batch.",
        "See `inference_model_execution_seconds`.",
    ),
    of_models(
        "nv_inference_compute_output_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative compute output duration; each request counts the time of its whole batch.",
        "It grows with the size of the outputs.",
    ),
    of_models(
        "nv_inference_pending_request_count",
        Kind.GAUGE,
        _VERSION,
        "requests",
        "Requests accepted that no executor has taken yet.",
        "Above 0 for long: the model is saturated; raise `num_executors`, or add servers.",
    ),
    of_models(
        "nv_model_load_duration_secs",
        Kind.GAUGE,
        _VERSION,
        "s",
        "Time that loading took, warm-up included.",
        "High: a larger model, more executors (each has a session), or a busy machine.",
    ),
    *(
        MetricSpec(f"nv_cache_{name}_per_model", Kind.COUNTER, _VERSION, unit, help_text, action, Presence.CACHED)
        for name, unit, help_text, action in (
            (
                "num_hits",
                "requests",
                "Requests that were answered from the response cache, or with the answer of one under way.",
                "Far below the misses: requests hardly repeat; `response_cache` costs more than it saves.",
            ),
            (
                "num_misses",
                "requests",
                "Requests that were computed.",
                "Rises while hits fall: the cache is too small, or the model was loaded again.",
            ),
            ("hit_duration", "µs", "Cumulative time of look-ups that found an answer.", "It grows with the inputs."),
            (
                "miss_duration",
                "µs",
                "Cumulative time of look-ups that found none, and of keeping the answer.",
                "It grows with inputs and outputs.",
            ),
        )
    ),
    *(
        MetricSpec(f"nv_cache_{name}", Kind.GAUGE, (), unit, help_text, action, Presence.CACHE)
        for name, unit, help_text, action in (
            ("util", "0 to 1", "Part of the response cache that is in use.", "At 1 with evictions: it is full."),
            ("num_entries", "answers", "Answers in the response cache.", "No action."),
            ("num_lookups", "requests", "Look-ups since the start.", "No action."),
            ("num_hits", "requests", "Look-ups that found an answer.", "See `nv_cache_num_hits_per_model`."),
            ("num_misses", "requests", "Look-ups that found none.", "See `nv_cache_num_misses_per_model`."),
            (
                "num_evictions",
                "answers",
                "Answers that made room for others.",
                "Rises fast: raise `--response-cache-byte-size`.",
            ),
            ("lookup_duration", "µs", "Cumulative time of look-ups.", "No action."),
            ("insertion_duration", "µs", "Cumulative time of keeping answers.", "No action."),
        )
    ),
    MetricSpec(
        "nv_cpu_utilization",
        Kind.GAUGE,
        (),
        "0 to 1",
        "CPU utilization of the whole machine since the last scrape, over a second at least.",
        "Near 1: latency grows for want of CPU; add CPUs or servers, or remove other work from the machine.",
    ),
    MetricSpec(
        "nv_cpu_memory_total_bytes",
        Kind.GAUGE,
        (),
        "bytes",
        "Memory of the machine.",
        "No action: it is constant.",
    ),
    MetricSpec(
        "nv_cpu_memory_used_bytes",
        Kind.GAUGE,
        (),
        "bytes",
        "Memory of the machine that is in use, and would not be available without swapping.",
        "Near the total: `process_resident_memory_bytes` has the server's part, `toutates_model_memory_bytes` the "
        "models'.",
    ),
    *(
        MetricSpec(name, kind, _GPU, unit, help_text, action, Presence.GPUS)
        for name, kind, unit, help_text, action in (
            (
                "nv_gpu_utilization",
                Kind.GAUGE,
                "0 to 1",
                "GPU utilization: the share of the time in which a kernel ran.",
                "Low while requests wait: batches are too small, or the CPU is the bottleneck.",
            ),
            ("nv_gpu_memory_total_bytes", Kind.GAUGE, "bytes", "Memory of the GPU.", "No action: it is constant."),
            (
                "nv_gpu_memory_used_bytes",
                Kind.GAUGE,
                "bytes",
                "Memory of the GPU that is in use.",
                "Near the total: lower `batch_size` or `num_executors`, or serve fewer models on this GPU.",
            ),
            (
                "nv_gpu_power_usage",
                Kind.GAUGE,
                "W",
                "Power that the GPU draws.",
                "At the limit, the GPU runs slower than it could.",
            ),
            ("nv_gpu_power_limit", Kind.GAUGE, "W", "Power that the GPU may draw.", "A change: somebody has set it."),
            (
                "nv_energy_consumption",
                Kind.COUNTER,
                "J",
                "Energy that the GPU has used since the server's start.",
                "Its rate is the mean power.",
            ),
        )
    ),
)
