"""What is read of a graph's operators from its file, without the package onnx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from toutates.backends.onnx import operators
from toutates.backends.onnx.operators import UNKNOWN, Operators, read_operators


def _tensor(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"])


def _branch(*kinds: str) -> onnx.GraphProto:
    nodes = [helper.make_node(kind, ["x"], [f"b{at}"]) for at, kind in enumerate(kinds)]
    return helper.make_graph(nodes, "branch", [], [_tensor(f"b{len(kinds) - 1}")])


def _saved(folder: Path, *nodes: onnx.NodeProto, weights: int = 3, **named: object) -> Path:
    # Weights that look like the mark of a graph, everywhere.
    constant = numpy_helper.from_array(np.frombuffer(b"\xa0\x01\x05\x22" * weights, np.uint8), "w")
    graph = helper.make_graph(list(nodes), "graph", [_tensor("x")], [_tensor("y")], [constant])
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph, **named).SerializeToString())
    return path


@pytest.mark.parametrize("weights", [3, 100_000], ids=["read", "mapped"])
def test_operators_are_read_and_weights_are_not(tmp_path: Path, weights: int) -> None:
    value = numpy_helper.from_array(np.frombuffer(b"\xa0\x01\x05\x00", np.uint8), "v")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Neg", ["x"], ["a"], "a name"),
        helper.make_node("Gelu", ["a"], ["y"], domain="com.microsoft"),
    ]
    path = _saved(tmp_path, *nodes, weights=weights)
    assert read_operators(path) == Operators(frozenset({"Constant", "Neg", "Gelu"}), has_subgraphs=False)


def test_graphs_inside_operators_are_looked_into(tmp_path: Path) -> None:
    inner = _branch("Abs")
    inner.node.append(helper.make_node("If", ["k"], ["z"], then_branch=_branch("Sin"), else_branch=_branch("Cos")))
    node = helper.make_node("If", ["k"], ["y"], then_branch=inner, else_branch=_branch("Neg", "Exp"))
    path = _saved(tmp_path, node)
    assert read_operators(path) == Operators(frozenset({"If", "Abs", "Sin", "Cos", "Neg", "Exp"}), has_subgraphs=True)


def test_functions_are_looked_into(tmp_path: Path) -> None:
    node = helper.make_node("If", ["k"], ["y"], then_branch=_branch("Sin"), else_branch=_branch("Cos"))
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "f", ["k", "x"], ["y"], [node], opsets)
    path = _saved(tmp_path, helper.make_node("f", ["x", "x"], ["y"], domain="own"), functions=[function])
    assert read_operators(path) == Operators(frozenset({"f", "If", "Sin", "Cos"}), has_subgraphs=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\0\0ORTM", b"\x3a\xff", b"\x3a\x7f\0", b"\xff" * 100, b"<html>no model</html>"],
    ids=["empty", "format of ONNX Runtime", "cut short", "size", "numbers", "text"],
)
def test_of_what_is_no_graph_nothing_is_known(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert read_operators(path) is UNKNOWN
    assert UNKNOWN.has_subgraphs


def test_a_file_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert read_operators(tmp_path / "none.onnx") is UNKNOWN
    assert read_operators(tmp_path) is UNKNOWN


def test_graphs_without_end_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_MAX_DEPTH", 1)
    inner = _branch("Abs")
    inner.node.append(helper.make_node("If", ["k"], ["z"], then_branch=_branch("Sin"), else_branch=_branch("Cos")))
    node = helper.make_node("If", ["k"], ["y"], then_branch=inner, else_branch=inner)
    assert read_operators(_saved(tmp_path, node)) is UNKNOWN
