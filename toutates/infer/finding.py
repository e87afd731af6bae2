"""The version that a request is for: by its model's name, by an alias, or any of those that have the name's traffic.

Where models are loaded on demand, requests that have waited for a model come before later ones for it.
"""

from __future__ import annotations

from toutates.infer.waiting import WaitingRequests
from toutates.models.table import ModelTable, ServedVersion
from toutates.models.traffic.rules import Route, Target
from toutates.system.errors import NotLoaded, RequestError, anew

__all__ = ["find_target", "find_version"]


def find_version(table: ModelTable, waiting: WaitingRequests | None, model: str, version: str) -> ServedVersion:
    """The version that a request names.

    Args:
        table: of models.
        waiting: the requests that wait for models; None where models are not loaded on demand.
        model: the name in the request.
        version: the version in the request; "" for the newest.

    Raises:
        NotLoaded: it has to be loaded, or requests that have waited for that come first.
        RequestError: there is none, or it cannot answer now.
    """
    model = table.spelling(model)
    if waiting is not None:
        waiting.keep_order(model)
    if not table.traffic:
        return table.find(model, version)
    route = None if version else table.traffic.routes.get(model)
    if route is not None:
        return _find_any(table, waiting, model, route)
    target = table.target_of(model, version)
    return table.find(model, version) if target is None else find_target(table, waiting, model, target)


def find_target(table: ModelTable, waiting: WaitingRequests | None, name: str, target: Target) -> ServedVersion:
    """The version that a name stands for. Arguments and errors as those of ``find_version``."""
    if waiting is not None:
        waiting.keep_order(table.model_spelling(target.model))
    return table.find_target(name, target)


def _find_any(table: ModelTable, waiting: WaitingRequests | None, name: str, route: Route) -> ServedVersion:
    """A version to read a request by: any of the route will do, because all take the same ones."""
    refusal: RequestError | None = None
    loadable: NotLoaded | None = None
    for arm in (route.heaviest, *route.arms):
        try:
            return table.find_target(name, arm)
        except NotLoaded as missing:
            if waiting is not None and not waiting.fails(missing.model):
                loadable = loadable or anew(missing)
            refusal = refusal or anew(missing)
        except RequestError as error:
            refusal = refusal or anew(error)
    # One that can be loaded comes before those that cannot: its requests are to be answered, whatever becomes of the
    # others'.
    refusal = loadable or refusal
    assert refusal is not None
    raise anew(refusal)
