"""What the management API says of a version of a model, in TorchServe's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toutates.models.table import ServedVersion
from toutates.protocol.model_config_pb2 import ModelConfig, ModelInstanceGroup

__all__ = ["description"]

#: TorchServe's defaults, which have no effect here.
_TIMEOUTS: Final = {"responseTimeout": 120, "startupTimeout": 120, "maxRetryTimeoutInSec": 300}


def description(
    model: str, version: str, url: str, config: ModelConfig, served: ServedVersion | None
) -> Mapping[str, Any]:
    """What is said of a version.

    Args:
        model, version: as it was registered.
        url: its archive's.
        config: of the model.
        served: the version where it is loaded.
    """
    group = config.instance_group[0] if config.instance_group else ModelInstanceGroup(count=1)
    gpu = group.kind == ModelInstanceGroup.KIND_GPU
    workers = [] if served is None else range(served.servable.statistics().executors)
    document: dict[str, Any] = {
        "modelName": model,
        "modelVersion": version,
        "modelUrl": url,
        "runtime": "python",
        "minWorkers": len(workers),
        "maxWorkers": len(workers),
        "batchSize": max(1, config.max_batch_size),
        "maxBatchDelay": config.dynamic_batching.max_queue_delay_microseconds // 1_000,
        **_TIMEOUTS,
        "deviceType": "gpu" if gpu else "cpu",
        "deviceIds": list(group.gpus),
        "loadedAtStartup": False,
        "workers": [{"id": str(9_000 + at), "status": "READY", "gpu": gpu} for at in workers],
    }
    if served is not None:
        occupancy = served.servable.statistics().occupancy
        left = max(0, occupancy.row_capacity - occupancy.rows)
        document["jobQueueStatus"] = {"remainingCapacity": left, "pendingRequests": occupancy.waiting}
    return document
