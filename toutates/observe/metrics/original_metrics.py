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
        "Errors: `nv_inference_request_failure` has the kinds; what is invalid is the client's. `resource_exhausted`: "
        "raise `capacity` or `num_executors`, or add servers. `not_found`: a client asks for a model we do not have.",
    ),
    of_models(
        "inference_batches_total",
        Kind.COUNTER,
        _MODEL,
        "batches",
        "Batches that have run.",
        "Nothing by itself; requests per batch is what counts, see `inference_batch_items`.",
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
        "It is the clients' choice. Above `batch_size`, each request takes several batches: raise it.",
    ),
    of_models(
        "inference_request_duration_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "From a request's arrival to its answer.",
        "Find the step that grew in the histograms below: in queue, the model is overloaded; execution, the model or "
        "the CPU is slow; the others, the worker is busy.",
    ),
    of_models(
        "inference_batch_duration_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "From when an executor took a batch to its outputs being ready.",
        "Compare with `inference_model_execution_seconds`: what is between them is our copying, or a wait for the GIL.",
    ),
    of_models(
        "inference_model_execution_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "ONNX Runtime's run of a batch.",
        "It grows with batches, and where CPUs are shared: look at `nv_cpu_utilization`, at the threads given to ONNX "
        "Runtime, and at pinning.",
    ),
    of_models(
        "inference_request_model_proxy_aquired_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 1 of a request: from its arrival to its plan being found. Of one request in 256.",
        "Milliseconds: requests whose kind is new each time (`toutates_plan_cache_misses_total`), or a busy worker.",
    ),
    of_models(
        "inference_serialization_done_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 2: until its rows are copied into the batch. Of one request in 256.",
        "It grows with the size of requests; for small ones a jump means memory that is not local or being swapped.",
    ),
    of_models(
        "inference_inference_in_queue_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 3: from its arrival to an executor taking its batch.",
        "The model has more to do than its executors can: raise `num_executors` or `batch_size`, or add servers. "
        "Callers with deadlines get the most out of what is there.",
    ),
    of_models(
        "inference_exec_start_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 4: from there to ONNX Runtime's start.",
        "Normally microseconds. More: batches of arrays (BYTES) that have to be joined, or no free CPU.",
    ),
    of_models(
        "inference_exec_end_seconds",
        Kind.HISTOGRAM,
        _MODEL,
        "s",
        "Step 5: from there to ONNX Runtime's end; a request is charged its whole batch's time.",
        "As `inference_model_execution_seconds`, weighted by requests.",
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
        "Slots taken: rows that wait or run.",
        "Near `inference_capacity` requests are about to be refused.",
    ),
    of_models(
        "inference_capacity",
        Kind.GAUGE,
        _MODEL,
        "rows",
        "Slots there are: `batch_size` times `capacity`.",
        "It changes with the configuration only.",
    ),
    of_models(
        "inference_executors_in_use",
        Kind.GAUGE,
        _MODEL,
        "executors",
        "Executors that have a batch, or are being replaced.",
        "All of them all the time: the model is saturated. See `toutates_executor_busy_seconds_total` for the share.",
    ),
    of_models(
        "inference_configured_batch_size",
        Kind.GAUGE,
        _MODEL,
        "rows",
        "Most rows that are run together.",
        "It changes with the configuration only.",
    ),
    MetricSpec(
        "loaded_models",
        Kind.GAUGE,
        (),
        "models",
        "Models of which a version is loaded.",
        "Fewer than there should be: RepositoryIndex and the log have the reason of each that is not.",
    ),
)
