"""What a plan remembers, and how much of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.infer.served import Served
from tests.infer.test_service import request
from toutates.infer import plan as module
from toutates.infer.plan import MAX_LAYOUT_BYTES, MAX_LAYOUTS, Plan


def made(served: Served) -> Plan:
    served.ask(request())
    plan: Plan = served.port.added[-1].context[1]
    return plan


@pytest.mark.parametrize(
    ("key_bytes", "most"), [(10, MAX_LAYOUTS), (MAX_LAYOUT_BYTES // 4, 4), (MAX_LAYOUT_BYTES + 1, 0)]
)
def test_layouts_are_bounded_by_number_and_by_bytes(key_bytes: int, most: int) -> None:
    plan = made(Served())
    found = []
    for length in range(most + 3):
        data = request(id="x" * (length + 1)).SerializeToString()
        found.append(plan.layout_of(bytes(key_bytes), data, 0, len(data)))
    assert [layout is not None for layout in found] == [True] * most + [False] * 3
    data = b"before" + request(id="y").SerializeToString()
    assert plan.layout_of(bytes(key_bytes), data, 6, len(data)) is (found[0] if most else None)


def test_a_template_is_made_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = made(Served())
    outputs: Any = type("Known", (), {"row_bytes": (16, 16), "row_shapes": ((4,), (4,)), "fixed": True})()
    monkeypatch.setattr(module, "MAX_TEMPLATED_BYTES", 31)
    assert plan.template_for(outputs) is None
    monkeypatch.setattr(module, "MAX_TEMPLATED_BYTES", 32)
    template = plan.template_for(outputs)
    assert template is not None
    assert plan.fixed_template is cast(Any, plan.template) is template
