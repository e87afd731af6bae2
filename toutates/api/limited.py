"""What callers who may use some models only get to see of answers about all of them."""

from __future__ import annotations

from typing import Any, Final

from toutates.access.callers import Caller
from toutates.api.dataplane.traffic import TrafficRequest
from toutates.models.traffic.rules import TrafficRules
from toutates.protocol import grpc_service_pb2 as pb

__all__ = ["check_names", "only"]

#: Fields that name a model. Names of other requests are of something else, such as a region of shared memory.
_FIELDS: Final[dict[type[Any], str]] = {
    pb.ModelReadyRequest: "name",
    pb.ModelMetadataRequest: "name",
    pb.ModelConfigRequest: "name",
    pb.ModelStatisticsRequest: "name",
    pb.TraceSettingRequest: "model_name",
    pb.RepositoryModelLoadRequest: "model_name",
    pb.RepositoryModelUnloadRequest: "model_name",
}
#: Requests that change, for all models, what they do not name one for.
_CHANGES: Final = (pb.TraceSettingRequest,)


def check_names(caller: Caller, request: Any, rules: TrafficRules) -> None:
    """Refuse a request that names a model which is not the caller's, or changes something for all models.

    It is refused before anything is done for it: a name may stand for a model that would be loaded first.

    Args:
        caller: who sends it.
        request: a message of the v2 protocol; one without a model is about all.
        rules: what names lead to.

    Raises:
        Forbidden: it is refused.
    """
    if isinstance(request, TrafficRequest):
        caller.check_all_models()
        return
    name = getattr(request, _FIELDS.get(type(request), ""), "")
    if name:
        caller.check_model(name, rules.leads_to(name))
    elif isinstance(request, _CHANGES) and request.settings:
        caller.check_all_models()


def only(caller: Caller, response: Any) -> Any:
    """An answer without the models that are not the caller's: another message where it has others.

    Raises:
        Forbidden: all of it is about a model that is not.
    """
    if isinstance(response, pb.RepositoryIndexResponse):
        models = [one for one in response.models if caller.may_use(one.name)]
        return response if len(models) == len(response.models) else pb.RepositoryIndexResponse(models=models)
    if isinstance(response, pb.ModelStatisticsResponse):
        stats = [one for one in response.model_stats if caller.may_use(one.name)]
        return response if len(stats) == len(response.model_stats) else pb.ModelStatisticsResponse(model_stats=stats)
    if isinstance(response, pb.ModelConfigResponse | pb.ModelMetadataResponse):
        # A name may have come to stand for a model that is not the caller's.
        told = response.config.name if isinstance(response, pb.ModelConfigResponse) else response.name
        if told:
            caller.check_model(told)
    return response
