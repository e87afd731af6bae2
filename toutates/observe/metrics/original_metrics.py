"""The metrics of the original Toutates."""

from __future__ import annotations

from typing import Final

from toutates.observe.metrics.spec import Kind, MetricSpec, of_models

__all__ = ["ORIGINAL"]

_MODEL: Final = ("model",)

ORIGINAL: Final = (
    MetricSpec(
        "inference_requests_total",
        Kind.COUNTER,
        ("model", "status"),
        "requests",
        "Inference requests that have ended, by outcome.",
        "`error`: `nv_inference_request_failure` has the reasons; invalid requests are a fault of the client. "
        "`resource_exhausted`: raise `capacity` or `num_executors`, or add servers. `late`: refused because the answer "
        "would have come after the deadline; add servers, or raise `latency_target_ms`. `not_found`: a client asks for "
        "a model that is not there.",
    ),
    of_models(
        "inference_batches_total",
        Kind.COUNTER,
        _MODEL,
        "batches",
        "Batches that have run.",
        "No action; `inference_batch_items` has the rows of each batch.",
    ),
    of_models(
        "inference_batch_items",
        Kind.HISTOGRAM,
        _MODEL,
        "rows",
        "Rows of the batches that have run.",
        "Near `inference_configured_batch_size` under load: raise `batch_size` if the time per row still falls. Near 1 "
        "under load: executors are not the bottleneck, or clients are too few.",
    ),
    of_models(
        "inference_client_batch_size",
        Kind.HISTOGRAM,
        _MODEL,
        "rows",
        "Rows of the requests that were answered.",
        "The clients choose it. Above `batch_size`, each request takes several batches: raise `batch_size`.",
    ),
    of_models(
        "inference_request_duration_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Time from a request's arrival to its answer.",
        "Rising: find the step that grew in the histograms below. In the queue: the model is overloaded. Execution: "
        "the "
        "model or the CPU is slow. The others: the worker is busy.",
    ),
    of_models(
        "inference_batch_duration_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Time from an executor taking a batch to its outputs being ready.",
        "More than `inference_model_execution_seconds`: the difference is copying, or waiting for the GIL.",
    ),
    of_models(
        "inference_model_execution_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Time of ONNX Runtime's run of a batch.",
        "It grows with the batches, and where CPUs are shared: look at `nv_cpu_utilization`, at the number of ONNX "
        "Runtime's threads, and at pinning.",
    ),
    of_models(
        "inference_request_model_proxy_aquired_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 1 of a request: from its arrival to its plan being found. Measured for one request in 256.",
        "Milliseconds: requests whose kind is new each time (`toutates_plan_cache_misses_total`), or a busy worker.",
    ),
    of_models(
        "inference_serialization_done_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 2: from there to its rows being copied into the batch. Measured for one request in 256.",
        "It grows with the size of requests; for small ones a jump means memory that is not local or being swapped.",
    ),
    of_models(
        "inference_inference_in_queue_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 3: from its arrival to an executor taking its batch.",
        "Rising: the executors cannot keep up. Raise `num_executors` or `batch_size`, or add servers. Deadlines of "
        "callers "
        "save the work for those that have given up.",
    ),
    of_models(
        "inference_exec_start_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 4: from there to the start of ONNX Runtime's run.",
        "Normally microseconds. More: arrays of BYTES that have to be joined, or no free CPU.",
    ),
    of_models(
        "inference_exec_end_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 5: from there to the end of the run; each request counts the time of its whole batch.",
        "See `inference_model_execution_seconds`; here each request counts.",
    ),
    of_models(
        "inference_output_processed_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 6: from there to the answer being handed to the connection.",
        "The workers are busy, or outputs are large: compare `toutates_worker_cpu_seconds_total` with 1 per second.",
    ),
    of_models(
        "inference_inflight",
        Kind.GAUGE,
        _MODEL,
        "rows",
        "Rows that wait or run.",
        "Near `inference_capacity`: requests will soon be refused.",
    ),
    of_models(
        "inference_capacity",
        Kind.GAUGE,
        _MODEL,
        "rows",
        "Rows that may wait or run: `batch_size` times `capacity`.",
        "No action: it changes only with the configuration.",
    ),
    of_models(
        "inference_executors_in_use",
        Kind.GAUGE,
        _MODEL,
        "executors",
        "Executors that have a batch, or are being replaced.",
        "All of them at all times: the model is saturated. `toutates_executor_busy_seconds_total` has their "
        "utilisation.",
    ),
    of_models(
        "inference_configured_batch_size",
        Kind.GAUGE,
        _MODEL,
        "rows",
        "Most rows in one run.",
        "No action: it changes only with the configuration.",
    ),
    MetricSpec(
        "loaded_models",
        Kind.GAUGE,
        (),
        "models",
        "Models of which a version is loaded.",
        "Fewer than expected: RepositoryIndex and the log have the reasons.",
    ),
)
