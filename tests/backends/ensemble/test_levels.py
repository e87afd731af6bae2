"""Which steps of an ensemble follow which of its decoupled ones, and what cannot be put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.backends.ensemble.made import ensemble_of, graph_of
from tests.backends.ensemble.members import MANY
from tests.engine.test_calls import ADD
from tests.ensembles import Step, pbtxt, step
from toutates.backends.ensemble.levels import find_levels
from toutates.models.dependencies import member_problems
from toutates.models.table import Member, Need

#: OUT = what "more" sends + what "many" has sent, which goes into "more".
NESTED: Final = [step("many", "x=IN", "y=t"), step("more", "x=t", "y=u"), step("add", "a=u", "b=t", "y=OUT")]
MEMBERS: Final = {
    Need(name, None): Member(ADD if name == "add" else MANY, 8, decoupled=name != "add")
    for name in ("add", "many", "more")
}


def config(steps: Sequence[Step], outputs: Sequence[str] = ("OUT FP32 [-1]",)) -> str:
    return pbtxt(["IN FP32 [-1]"], outputs, steps)


def test_what_comes_of_two_decoupled_steps_is_not_put_together() -> None:
    two = [step("many", "x=IN", "y=t"), step("more", "x=IN", "y=u")]
    _, [problem] = find_levels(graph_of(config([*two, step("add", "a=t", "b=u", "y=OUT")])), MEMBERS)
    assert problem == "in ensemble e, step of model 'add' receives inputs originated from different decoupled models"
    apart = [step("many", "x=IN", "y=OUT"), step("more", "x=IN", "y=SUM")]
    _, [problem] = find_levels(graph_of(config(apart, ["OUT FP32 [-1]", "SUM FP32 [-1]"])), MEMBERS)
    assert problem.startswith("in ensemble e, outputs originate from different decoupled models")


def test_levels_are_found_whatever_the_order_of_the_steps() -> None:
    levels, problems = find_levels(graph_of(config(NESTED[::-1])), MEMBERS)
    assert (levels.sources, levels.steps, problems) == ((2, 1), (0, 0, 1), [])
    plain, _ = find_levels(graph_of(config([step("add", "a=IN", "y=OUT")])), MEMBERS)
    assert (plain.sources, plain.steps) == ((), (1,))


def test_an_ensemble_of_a_decoupled_ensemble_is_decoupled_too_and_stays_so() -> None:
    inner = ensemble_of(config([step("many", "x=IN", "y=OUT")]), name="inner")
    twice = [step("inner", "IN=IN", "OUT=t"), step("many", "x=IN", "y=u"), step("add", "a=t", "b=u", "y=OUT")]
    outer = ensemble_of(config(twice), name="outer")
    found = {need.model: {1: (member, None)} for need, member in MEMBERS.items()}
    own = Member(inner.signature, 8)
    assert member_problems({**found, "inner": {1: (own, inner)}, "outer": {1: (own, outer)}}) == {
        ("outer", 1): [
            "in ensemble outer, step of model 'add' receives inputs originated from different decoupled models"
        ]
    }
