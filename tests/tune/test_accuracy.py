"""How near answers are, and copies of models in int8 and fp16."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from toutates.bench.outputs import Output
from toutates.tune.accuracy import read_accuracy
from toutates.tune.copies import KINDS, NotMade, make_copy


def outputs(values: object, datatype: str = "FP32", name: str = "y") -> dict[str, Output]:
    array = np.array(values, np.float32 if datatype == "FP32" else np.int64)
    return {name: Output(datatype, array.shape, array.ravel())}


@pytest.mark.parametrize(
    ("text", "bound"), [("cosine>=0.999", 0.999), (" difference <= 1% ", 0.01), ("difference<=0.02", 0.02)]
)
def test_accuracies_are_read(text: str, bound: float) -> None:
    assert read_accuracy(text).bound == pytest.approx(bound)


@pytest.mark.parametrize(
    "text", ["", "cosine", "cosine<=0.9", "difference>=1%", "cosine>=1.1", "cosine>=99%", "difference<=0%", "loss<=1"]
)
def test_what_is_no_accuracy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an accuracy such as cosine>=0"):
        read_accuracy(text)


def test_cosine_is_that_of_the_worst_row() -> None:
    cosine = read_accuracy("cosine>=0.9")
    value = cosine.of(outputs([[1, 0], [1, 1]]), outputs([[2, 0], [1, 0]]))
    assert value == pytest.approx(2**-0.5)
    assert not cosine.holds(value)
    assert cosine.of(outputs([[0, 0]]), outputs([[0, 0]])) == 1
    assert cosine.of(outputs([[0, 1]]), outputs([[0, 0]])) == 0
    assert cosine.of(outputs([[np.nan, 1]]), outputs([[1, 1]])) == -1
    assert cosine.worse(0.5, 0.7) == 0.5


def test_difference_is_a_share_of_the_greatest_value() -> None:
    difference = read_accuracy("difference<=10%")
    value = difference.of(outputs([[1.0, -8.5]]), outputs([[1.2, -8.0]]))
    assert value == pytest.approx(0.5 / 8)
    assert difference.holds(value)
    assert difference.of(outputs([0.0]), outputs([0.0])) == 0
    assert difference.of(outputs([0.1]), outputs([0.0])) == np.inf
    assert difference.worse(0.5, 0.7) == 0.7


@pytest.mark.parametrize(
    "given",
    [outputs([1, 3], "INT64"), outputs([1, 2, 3], "INT64"), outputs([1, 2]), outputs([1, 2], "INT64", "z")],
    ids=["other values", "more values", "another type", "another name"],
)
def test_outputs_that_are_no_numbers_of_floating_point_have_to_be_equal(given: dict[str, Output]) -> None:
    wanted = outputs([1, 2], "INT64")
    assert read_accuracy("cosine>=0.1").of(wanted, wanted) == 1
    assert read_accuracy("cosine>=0.1").of(given, wanted) == -1
    assert read_accuracy("difference<=99%").of(given, wanted) == np.inf


def network(path: Path) -> Path:
    """A convolution and a layer of weights."""
    rng = np.random.default_rng(1)
    weights = {
        "filters": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "matrix": rng.standard_normal((256, 10)).astype(np.float32),
        "bias": rng.standard_normal(10).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "filters"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "matrix", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network(tmp_path_factory.mktemp("network") / "model.onnx")


@pytest.mark.parametrize(("kind", "least"), list(zip(KINDS, (0.99, 0.98, 0.99999), strict=True)))
def test_copies_answer_nearly_the_same(source: Path, tmp_path: Path, kind: str, least: float) -> None:
    import onnxruntime

    rng = np.random.default_rng(2)
    samples = [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(16)]
    target = tmp_path / "copy.onnx"
    make_copy(kind, source, target, samples)
    before, after = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in (source, target)
    )
    assert [(one.name, one.type, one.shape) for one in after.get_inputs()] == [
        (one.name, one.type, one.shape) for one in before.get_inputs()
    ]
    cosine = read_accuracy(f"cosine>={least}")
    for sample in samples[:4]:
        given, wanted = (outputs(session.run(None, sample)[0]) for session in (after, before))
        assert cosine.holds(cosine.of(given, wanted))
    types = {node.op_type for node in onnx.load(target).graph.node}
    assert types & {"MatMulInteger", "QuantizeLinear", "Cast"}
    assert [path.name for path in tmp_path.iterdir()] == ["copy.onnx"]


def test_copies_that_cannot_be_made_leave_nothing(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.onnx"
    with pytest.raises(NotMade, match="do not hold the inputs"):
        make_copy("int8-static", source, target, [])
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(NotMade, match=r"."):
        make_copy("fp16", tmp_path / "broken.onnx", target, [])
    assert not target.exists()
    make_copy("int8", source, target, [])
    with pytest.raises(NotMade, match="quantized already"):
        make_copy("int8", target, tmp_path / "again.onnx", [])
    held = target.read_bytes()
    with pytest.raises(NotMade, match=r"a file copy\.onnx already"):
        make_copy("fp16", source, target, [])
    assert target.read_bytes() == held


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import builtins

    from toutates.command.main import main

    real: Any = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "onnx":
            raise ImportError("No module named 'onnx'")
        return real(name, *rest, **more)

    assert importlib.util.find_spec("onnx") is not None
    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["tune", "nowhere", "--accuracy=cosine>=0.9"]) == 2
    assert "pip install 'toutates[cpu,convert]'" in capsys.readouterr().err
