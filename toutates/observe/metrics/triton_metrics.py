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
        "No more while clients send: look at the failures and at `inference_requests_total`.",
    ),
    of_models(
        "nv_inference_request_failure",
        Kind.COUNTER,
        ("model", "reason", "version"),
        "requests",
        "Number of failed inference requests, by reason: REJECTED, CANCELED, BACKEND, OTHER.",
        "REJECTED: deadlines are shorter than the queue; add executors or servers. CANCELED: clients gave up. BACKEND: "
        "the model fails on what it is sent; the callers have ONNX Runtime's words. OTHER: the log has the reason.",
    ),
    of_models(
        "nv_inference_count",
        Kind.COUNTER,
        _VERSION,
        "inferences",
        "Number of inferences performed: a request of 8 rows adds 8.",
        "Divided by `nv_inference_exec_count`, the mean batch.",
    ),
    of_models(
        "nv_inference_exec_count",
        Kind.COUNTER,
        _VERSION,
        "batches",
        "Number of model executions performed.",
        "As `inference_batches_total`.",
    ),
    of_models(
        "nv_inference_request_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative inference request duration, from arrival to answer.",
        "Its rate by that of `nv_inference_request_success` is the mean latency.",
    ),
    of_models(
        "nv_inference_queue_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative inference queuing duration.",
        "Per request it is what autoscalers look at; rising, the model needs more executors or servers.",
    ),
    of_models(
        "nv_inference_compute_input_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative compute input duration; each request of a batch is charged the whole batch's.",
        "As `inference_exec_start_seconds`.",
    ),
    of_models(
        "nv_inference_compute_infer_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative compute inference duration; each request of a batch is charged the whole batch's.",
        "As `inference_model_execution_seconds`.",
    ),
    of_models(
        "nv_inference_compute_output_duration_us",
        Kind.COUNTER,
        _VERSION,
        "µs",
        "Cumulative compute output duration; each request of a batch is charged the whole batch's.",
        "It grows with the size of the outputs.",
    ),
    of_models(
        "nv_inference_pending_request_count",
        Kind.GAUGE,
        _VERSION,
        "requests",
        "Requests accepted that no executor has taken yet.",
        "Lastingly above 0: the model is saturated; raise `num_executors`, or add servers.",
    ),
    of_models(
        "nv_model_load_duration_secs",
        Kind.GAUGE,
        _VERSION,
        "s",
        "How long loading took, warm-up included.",
        "A slow start or reload: a larger model, more executors (a session each), or a busy machine.",
    ),
    MetricSpec(
        "nv_cpu_utilization",
        Kind.GAUGE,
        (),
        "0 to 1",
        "CPU utilization of the whole machine, since the scrape before, at least a second.",
        "Near 1: latency grows for want of CPU; add CPUs or servers, or take what else runs off the machine.",
    ),
    MetricSpec(
        "nv_cpu_memory_total_bytes",
        Kind.GAUGE,
        (),
        "bytes",
        "Memory of the machine.",
        "It does not move.",
    ),
    MetricSpec(
        "nv_cpu_memory_used_bytes",
        Kind.GAUGE,
        (),
        "bytes",
        "Memory of the machine that is in use, and could not be had without swapping.",
        "Near the total: `process_resident_memory_bytes` says whether it is us, `toutates_model_memory_bytes` what.",
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
            ("nv_gpu_memory_total_bytes", Kind.GAUGE, "bytes", "Memory of the GPU.", "It does not move."),
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
            ("nv_gpu_power_limit", Kind.GAUGE, "W", "Power that the GPU may draw.", "Somebody has set it."),
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
