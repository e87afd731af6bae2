"""The plan of a request whose name has an alias or traffic.

Mostly it is a plan for all requests like it, whose port divides them (``divided``). Where not all versions answer, or
where tensors are in shared memory, it is for this one request, and is not remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toutates.engine.servable import Port
from toutates.infer.plan import Plan
from toutates.infer.traffic.divided import Arm, Divider, divided, fits
from toutates.models.table import ServedVersion
from toutates.models.traffic.rules import BY_ID, Route, Target, TrafficRules, cuts_of
from toutates.protocol.sequence_parameters import said_in
from toutates.system.errors import RequestError

__all__ = ["AskedFor", "TrafficPlans"]

#: Makes a plan of another version for the same request; it raises RequestError where that version does not take it.
#: The plan is of the service's own class.
MakePlan = Callable[[ServedVersion], Any]


@dataclass(frozen=True, slots=True)
class AskedFor:
    """What of a request decides its version.

    Attributes:
        model, version: as the request names them; "" for no version.
        parameters: of the request.
        id_field: what the service keeps of the request's id; b"" for none.
    """

    model: str
    version: str
    parameters: Mapping[str, Any]
    id_field: bytes


class TrafficPlans:
    """Makes the plans of one service's requests whose names have an alias or traffic.

    Args:
        divider: chooses and counts the versions.
        find: the version that a name stands for; it raises RequestError where that cannot answer now.
        copied_port: the port to a version for those requests that are copied.
    """

    def __init__(
        self,
        divider: Divider,
        find: Callable[[str, Target], ServedVersion],
        copied_port: Callable[[ServedVersion], Port],
    ) -> None:
        self._divider = divider
        self._find = find
        self._copied_port = copied_port

    def plan_for(self, asked: AskedFor, rules: TrafficRules, plan: Any, make: MakePlan) -> tuple[Any, bool]:
        """The plan of a request.

        Args:
            asked: what the request says.
            rules: of the model table.
            plan: the request's plan for one of the versions.
            make: makes those for others.

        Returns:
            The plan, and whether it may be remembered.

        Raises:
            RequestError: the version that the request gets does not take it.
        """
        models = rules.leads_to(asked.model)
        plan.names = (asked.model, *models) if models else ()
        route = None if asked.version else rules.routes.get(asked.model)
        if route is None:
            return plan, True
        divider = self._divider
        targets, cuts = list(route.arms), cuts_of(route.weights)
        given = asked.parameters.get(route.parameter) if route.parameter else None
        if given is not None:
            # The parameter is a part of the plan's key, so all requests of the plan get the same version.
            chosen = divider.chosen(route, str(_value_of(given)).encode())
            targets, cuts = targets[chosen : chosen + 1], []
        if plan.shared is None:
            try:
                return self._divided(route, self._arms(asked, route, targets, plan, make), cuts, plan), True
            except RequestError:
                pass  # a version does not answer now; only the requests that it gets are refused
        target = targets[divider.chosen(route, self._identity(asked, route))] if cuts else targets[0]
        if plan.shared is None:
            return self._divided(route, self._arms(asked, route, [target], plan, make), [], plan), False
        # Regions belong to the port of one version.
        own = self._find(asked.model, target)
        divider.count_of(route, target)[0] += 1
        chosen_plan = plan if own is plan.version else make(own)
        chosen_plan.names = plan.names
        return chosen_plan, False

    def _arms(self, asked: AskedFor, route: Route, targets: Sequence[Target], plan: Plan, make: MakePlan) -> list[Arm]:
        """The versions of a plan, each with its own plan.

        Raises:
            RequestError: one of them cannot answer now, or does not take the request.
        """
        arms: list[Arm] = []
        for target in targets:
            version = self._find(asked.model, target)
            of_arm = plan if version is plan.version else make(version)
            arms.append(Arm(target, of_arm, fits(plan, of_arm), self._divider.count_of(route, target)))
        return arms

    def _divided(self, route: Route, arms: Sequence[Arm], cuts: Sequence[int], plan: Plan) -> Plan:
        copying = None if route.shadow is None or self._divider.copies is None else self._copied_port
        return divided(self._divider, route, plan, arms, cuts, copying)

    def _identity(self, asked: AskedFor, route: Route) -> bytes:
        """What has a request get the same version each time: its sequence, or its id where the route says so."""
        said = said_in(asked.parameters)
        if said is not None and said[0]:
            return str(said[0]).encode()
        return self._divider.identity_of(asked.id_field) if asked.id_field and route.sticky == BY_ID else b""


def _value_of(parameter: Any) -> object:
    """The value of a request's parameter."""
    return getattr(parameter, str(parameter.WhichOneof("parameter_choice")), "")
