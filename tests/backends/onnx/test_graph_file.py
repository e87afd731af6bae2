"""What is read of a graph's operators from its file, without the package onnx."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.dependent_models import graph, node, quantized, running_sum
from toutates.backends.onnx import graph_file
from toutates.backends.onnx.file_bytes import FileBytes
from toutates.backends.onnx.graph_file import GraphFile
from toutates.backends.probing import GraphFacts

F = TensorProto.FLOAT
VALUE: Any = ["n", 4]


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


def _told(path: Path) -> tuple[bool, GraphFacts]:
    file = GraphFile(path)
    return file.has_subgraphs(), file.facts()


WEIGHTS = pytest.mark.parametrize("weights", [3, 100_000], ids=["read", "by parts"])


@WEIGHTS
def test_operators_are_read_and_weights_are_not(tmp_path: Path, weights: int) -> None:
    value = numpy_helper.from_array(np.frombuffer(b"\xa0\x01\x05\x00", np.uint8), "v")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Neg", ["x"], ["a"], "a name"),
        helper.make_node("Gelu", ["a"], ["y"], domain="com.microsoft"),
    ]
    assert _told(_saved(tmp_path, *nodes, weights=weights)) == (False, GraphFacts())


@WEIGHTS
def test_graphs_inside_operators_are_looked_into(tmp_path: Path, weights: int) -> None:
    inner = _branch("Abs")
    inner.node.append(
        helper.make_node("If", ["k"], ["z"], then_branch=_branch("Sin"), else_branch=_branch("RandomNormalLike"))
    )
    node = helper.make_node("If", ["k"], ["y"], then_branch=inner, else_branch=_branch("Neg", "QuantizeLinear"))
    told = _told(_saved(tmp_path, node, weights=weights))
    assert told == (True, GraphFacts(is_random=True, is_inexact=True))


def test_functions_are_looked_into(tmp_path: Path) -> None:
    node = helper.make_node("If", ["k"], ["y"], then_branch=_branch("Bernoulli"), else_branch=_branch("Cos"))
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "f", ["k", "x"], ["y"], [node], opsets)
    path = _saved(tmp_path, helper.make_node("f", ["x", "x"], ["y"], domain="own"), functions=[function])
    assert _told(path) == (True, GraphFacts(is_random=True))


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\0\0ORTM", b"\x3a\xff", b"\x3a\x7f\0", b"\x3a\xff\xff\x03abc", b"\xff" * 100, b"<html>no</html>"],
    ids=["empty", "format of ONNX Runtime", "cut short", "size", "a large size", "numbers", "text"],
)
def test_of_what_is_no_graph_nothing_is_known(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert _told(path) == (True, GraphFacts())


def test_a_file_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert _told(tmp_path / "none.onnx") == (True, GraphFacts())
    assert _told(tmp_path) == (True, GraphFacts())


@pytest.mark.parametrize("becomes", ["another", "nothing"])
def test_a_file_that_is_replaced_before_anybody_asks_tells_nothing(tmp_path: Path, becomes: str) -> None:
    path = _saved(tmp_path, helper.make_node("Neg", ["x"], ["y"]))
    file, same = GraphFile(path), GraphFile(path)
    assert not same.has_subgraphs()
    if becomes == "another":
        copy = tmp_path / "copy"
        copy.write_bytes(path.read_bytes())
        os.replace(copy, path)
    else:
        path.unlink()
    assert file.has_subgraphs()
    assert not same.has_subgraphs()


def test_graphs_without_end_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "_MAX_DEPTH", 1)
    inner = _branch("Abs")
    inner.node.append(helper.make_node("If", ["k"], ["z"], then_branch=_branch("Sin"), else_branch=_branch("Cos")))
    node = helper.make_node("If", ["k"], ["y"], then_branch=inner, else_branch=inner)
    assert _told(_saved(tmp_path, node)) == (True, GraphFacts())


def _loop(body: onnx.NodeProto) -> onnx.ModelProto:
    """A graph with a node in a branch."""

    def branch(own: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([own], "b", [], [helper.make_tensor_value_info("r", F, VALUE)])

    same = helper.make_node("Identity", ["x"], ["r"])
    either = helper.make_node("If", ["yes"], ["y"], then_branch=branch(body), else_branch=branch(same))
    return graph([either], [("x", F, VALUE)], [("y", F, VALUE)], yes=np.array(True))


def _half() -> onnx.ModelProto:
    cast = [node("Cast", "x", "h", to=TensorProto.FLOAT16), node("Cast", "h", "y", to=F)]
    return graph(cast, [("x", F, VALUE)], [("y", F, VALUE)])


def _large() -> onnx.ModelProto:
    model = graph([node("Add", "x w", "y")], [("x", F, VALUE)], [("y", F, VALUE)])
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((100_000, 4), np.float32), "w"))
    return model


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        (running_sum(), GraphFacts()),
        (_large(), GraphFacts()),
        (quantized(), GraphFacts(is_inexact=True)),
        (_half(), GraphFacts(is_inexact=True)),
        (running_sum(TensorProto.BFLOAT16), GraphFacts(is_inexact=True)),
        (_loop(helper.make_node("RandomNormalLike", ["x"], ["r"])), GraphFacts(is_random=True)),
        (_loop(helper.make_node("Neg", ["x"], ["r"])), GraphFacts()),
    ],
)
def test_a_file_tells_what_operators_compute_with(tmp_path: Path, model: onnx.ModelProto, facts: GraphFacts) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert GraphFile(path).facts() == facts


def _external(location: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("offset", "8"), ("location", location), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


@WEIGHTS
def test_files_of_weights_are_found_wherever_a_graph_has_tensors(tmp_path: Path, weights: int) -> None:
    branch = _branch("Abs")
    branch.initializer.append(_external("of a branch"))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=_external("of a node")),
        helper.make_node("Identity", ["x"], ["i"], "location"),
        helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=_branch("Neg")),
    ]
    path = _saved(tmp_path, *nodes, weights=weights)
    model = onnx.load(path, load_external_data=False)
    large = numpy_helper.from_array(np.zeros(weights, np.uint8), "location")
    sparse = onnx.SparseTensorProto(values=_external("sparse"), indices=large)
    model.graph.initializer.extend([_external("a/b"), large, _external("ü")])
    model.graph.sparse_initializer.append(sparse)
    path.write_bytes(model.SerializeToString())
    found = GraphFile(path).external
    names = {one.location: one.is_initializer for one in found}
    assert names == {
        "of a branch": False, "of a node": False, "a/b": True, "ü": True, "sparse": False,
    }  # fmt: skip
    assert onnx.TensorProto.FromString(next(one.tensor for one in found if one.location == "a/b")) == _external("a/b")


def test_a_file_that_is_cut_short_while_it_is_read_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the process if it were mapped."""
    path = _saved(tmp_path, helper.make_node("Neg", ["x"], ["y"]), weights=100_000)

    class Cut(FileBytes):
        def __init__(self, descriptor: int, size: int) -> None:
            os.truncate(path, 0)
            super().__init__(descriptor, size)

    monkeypatch.setattr(graph_file, "FileBytes", Cut)
    assert GraphFile(path).has_subgraphs()
