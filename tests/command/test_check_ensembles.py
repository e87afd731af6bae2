"""``toutates check`` of ensembles: every mistake of a graph, and between a graph and its members, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.ensembles import MODELS, Step, add_ensemble, add_graph, pbtxt, step
from toutates.command.check import Report, check_repository

IN: Final = ["IN FP32 [4]"]
OUT: Final = ["OUT FP32 [4]"]


def checked(root: Path, **ensembles: str) -> Report:
    for name in ("double", "add_sub", "lookup", "biased"):
        add_graph(root, name, MODELS[name])
    add_graph(root, "narrow", MODELS["double"], config="max_batch_size: 4")
    for name, config in ensembles.items():
        add_ensemble(root, name, config)
    return check_repository(root)


def test_an_ensemble_that_is_right_is_a_fact(tmp_path: Path) -> None:
    report = checked(tmp_path, e=pbtxt(IN, OUT, [step("double", "x=IN", "y=OUT")]))
    assert not report.problems
    assert "e 1: batched, made of double" in report.facts


#: Steps, what else the configuration has, and what is said of it.
MISTAKES: Final[dict[str, tuple[list[Step], str, list[str]]]] = {
    "no steps": ([], "", ["must specify 'step' for ensemble 'e'"]),
    "fields": (
        [step("double", "x=IN", "y=OUT")],
        "instance_group { count: 2 } optimization { } model_warmup { name: 'w' batch_size: 1 inputs { key: 'IN' "
        "value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }",
        [
            "instance group should not be specified for ensemble 'e'",
            "optimization should not be specified for ensemble 'e'",
            "model_warmup can not be specified for ensemble 'e'",
        ],
    ),
    "parts": (
        [("", {"x": "IN"}, {"y": "OUT"}), ("double", {}, {"y": "t"}), ("double", {"x": "t"}, {})],
        "",
        [
            "must specify 'model_name' in step 0 of ensemble 'e'",
            "must specify 'input_map' in step 1 of ensemble 'e'",
            "must specify 'output_map' in step 2 of ensemble 'e'",
        ],
    ),
    "flow": (
        [
            step("double", "x=t", "y=OUT"),
            step("double", "x=nowhere", "y=t"),
            step("double", "x=IN", "y=t"),
            step("double", "x=IN", "y=unread"),
        ],
        "",
        [
            "ensemble tensor 't' can appear in an output map only once for ensemble 'e' step 2",
            "ensemble tensor 'unread' is unused in ensemble 'e'",
        ],
    ),
    "a circle of tensors": (
        [step("add_sub", "a=IN", "b=t1", "sum=t0"), step("double", "x=t0", "y=t1"), step("double", "x=t0", "y=OUT")],
        "",
        ["output 'OUT' for ensemble 'e' is not written: at least one of its depending tensors, 't0', is not connected"],
    ),
    "members": (
        [
            step("nobody", "x=IN", "y=a"),
            step("double/3", "x=IN", "y=b"),
            step("narrow", "x=IN", "z=a", "y=c"),
            step("add_sub", "a=b", "sum=OUT", "difference=d"),
            step("lookup", "x=c", "y=f"),
            step("add_sub", "a=d", "b=f", "sum=g"),
            step("double", "x=g", "y=OUT2"),
        ],
        "",
        [
            "ensemble e contains models that are not available or ambiguous: nobody",
            "ensemble 'e' depends on 'double' whose required version 3 is not loaded.",
            "ensemble e allows maximum batch size 8, but it contains model narrow which only allows maximum batch size "
            "to be 4",
            "in ensemble e, ensemble tensor a is mapping to non-existing input z in model narrow",
            "in ensemble e, input b in model add_sub is not mapped to any ensemble tensors",
            "in ensemble e, ensemble tensor c: inconsistent data type: TYPE_FP32 is inferred from model narrow while "
            "TYPE_INT64 is inferred from model lookup",
            "in ensemble e, ensemble tensor f: inconsistent shape: [-1,1] is inferred from model lookup while [-1,4] "
            "is inferred from model add_sub",
        ],
    ),
}


@pytest.mark.parametrize(("steps", "more", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_every_mistake_of_a_graph_is_named_at_once(
    tmp_path: Path, steps: list[Step], more: str, said: list[str]
) -> None:
    outputs = [*OUT, "OUT2 FP32 [4]"] if len(steps) > 4 else OUT
    report = checked(tmp_path, e=pbtxt(IN, outputs, steps, more=more))
    for text in said:
        [line] = [line for line in report.problems if text in line]
        assert str(tmp_path / "e" / "config.pbtxt") in line
        assert "; " in line


def test_ensembles_that_are_made_of_each_other_are_named(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        one=pbtxt(IN, OUT, [step("two", "IN=IN", "OUT=OUT")]),
        two=pbtxt(IN, OUT, [step("one", "IN=IN", "OUT=OUT")]),
    )
    said = "\n".join(report.problems)
    assert "circular dependency between ensembles: one -> two -> one" in said
    assert "circular dependency between ensembles: two -> one -> two" in said


@pytest.mark.parametrize("value", ["-1", '"invalid_value"', "12345678901"])
def test_max_inflight_requests_is_a_number(tmp_path: Path, value: str) -> None:
    steps = [step("double", "x=IN", "y=OUT")]
    report = checked(tmp_path, e=pbtxt(IN, OUT, steps, scheduling=f"max_inflight_requests: {value}"))
    [problem] = report.problems
    assert "line 4" in problem
