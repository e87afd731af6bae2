"""TraceSetting: changes the trace settings, and returns them."""

from __future__ import annotations

import logging

from toutates.infer.tracing.settings import OFF, TraceSettings, read_changes, without_effect
from toutates.models.table import ModelTable
from toutates.protocol.grpc_service_pb2 import TraceSettingRequest, TraceSettingResponse
from toutates.system.errors import InvalidRequest, RequestError

__all__ = ["trace_setting"]

logger = logging.getLogger(__name__)


def trace_setting(table: ModelTable, settings: TraceSettings, request: TraceSettingRequest) -> TraceSettingResponse:
    """Answer TraceSetting: make all changes that the request asks for, or none, and return the settings.

    Args:
        table: the model table; only models that can answer have settings of their own.
        settings: the trace settings of the server.
        request: a request without a model is for all models; one without settings changes nothing.

    Raises:
        InvalidRequest, Unsupported: the request cannot be used; the text is Triton's.
    """
    model = table.spelling(request.model_name)
    if model:
        try:
            found = table.find(model, "")
        except RequestError:
            raise InvalidRequest(f"Request for unknown model : {model}") from None
        if found.model != model:
            raise InvalidRequest(f"'{model}' is no model but an alias; set traces for the model that it stands for")
    if request.settings:
        given = {key: list(value.value) for key, value in request.settings.items()}
        settings.update(model, read_changes(given))
        ignored = without_effect(given)
        if ignored:
            logger.warning("a TraceSetting request asks for what has no effect: %s", "; ".join(ignored))
    setting = settings.get(model)
    values = {
        "trace_level": list(setting.levels) or [OFF],
        "trace_rate": [str(setting.rate)],
        "trace_count": [str(setting.count)],
        "log_frequency": [str(setting.log_frequency)],
        "trace_file": [""],
        "trace_mode": ["opentelemetry"],
    }
    return TraceSettingResponse(
        settings={key: TraceSettingResponse.SettingValue(value=value) for key, value in values.items()}
    )
