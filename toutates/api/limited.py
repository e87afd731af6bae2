"""What callers who may use some models only get to see of answers about all of them."""

from __future__ import annotations

from typing import Any, Final

from toutates.access.callers import Caller
from toutates.api.dataplane.traffic import TrafficRequest
from toutates.protocol import grpc_service_pb2 as pb

__all__ = ["check_names", "only"]

#: Requests that change, for all models, what they do not name one for.
_CHANGES: Final = (pb.TraceSettingRequest,)


def check_names(caller: Caller, request: Any) -> None:
    """Refuse a request that names a model which is not the caller's, or changes something for all models.

    Args:
        caller: who sends it.
        request: a message of the v2 protocol; one without a model is about all.

    Raises:
        Forbidden: it is refused.
    """
    if isinstance(request, TrafficRequest):
        caller.check_all_models()
        return
    field = "model_name" if "model_name" in request.DESCRIPTOR.fields_by_name else "name"
    name = getattr(request, field, "")
    if name:
        caller.check_model(name)
    elif isinstance(request, _CHANGES) and request.settings:
        caller.check_all_models()


def only(caller: Caller, response: Any) -> Any:
    """An answer without the models that are not the caller's. It is changed, where it has others."""
    entries: Any
    if isinstance(response, pb.RepositoryIndexResponse):
        entries = response.models
    elif isinstance(response, pb.ModelStatisticsResponse):
        entries = response.model_stats
    else:
        # A name may stand for a model that is not the caller's.
        told = response.config.name if isinstance(response, pb.ModelConfigResponse) else getattr(response, "name", "")
        if told and isinstance(response, pb.ModelConfigResponse | pb.ModelMetadataResponse):
            caller.check_model(told)
        return response
    for at in reversed([at for at, entry in enumerate(entries) if not caller.may_use(entry.name)]):
        del entries[at]
    return response
