"""The signature of real graphs, as ONNX Runtime reports them and config.yaml narrows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from toutates.backends.onnx.signature_reader import read_signature
from toutates.models.config.declared import Declared, DeclaredTensor
from toutates.models.config.settings import ModelSettings
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError, ModelLoadError

SOURCE = Path("repository/m/1/config.yaml")
FP32 = BY_NAME["FP32"]

Shape = Sequence[int | str | None]


def tensor(name: str, shape: Shape | None, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def session(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnxruntime.InferenceSession:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializer=initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # ONNX Runtime warns of the overridable initializers that are made on purpose
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def identities(
    *pairs: tuple[Shape | None, Shape | None], element: int = TensorProto.FLOAT
) -> onnxruntime.InferenceSession:
    """A graph of inputs x0, x1 ... copied to outputs y0, y1 ..., with the shapes given for each pair."""
    return session(
        [helper.make_node("Identity", [f"x{i}"], [f"y{i}"]) for i in range(len(pairs))],
        [tensor(f"x{i}", shape, element) for i, (shape, _) in enumerate(pairs)],
        [tensor(f"y{i}", shape, element) for i, (_, shape) in enumerate(pairs)],
    )


def with_optional_weights() -> onnxruntime.InferenceSession:
    """Y = x * w, where a request may replace w."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    return session([node], [tensor("w", [2]), tensor("x", ["n", 2])], [tensor("y", ["n", 2])], [weights])


def with_optional_type() -> onnxruntime.InferenceSession:
    """Whether x was given, before y = z."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 2]))
    nodes = [helper.make_node("OptionalHasElement", ["x"], ["given"]), helper.make_node("Identity", ["z"], ["y"])]
    outputs = [tensor("given", [], TensorProto.BOOL), tensor("y", ["n", 2])]
    return session(nodes, [helper.make_value_info("x", kind), tensor("z", ["n", 2])], outputs)


def read(
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    outputs: Mapping[str, tuple[int, ...]] | None = None,
) -> Signature:
    settings = ModelSettings(input_shapes=inputs or {}, output_shapes=outputs or {})
    return read_signature(session, settings, source=SOURCE)


def test_a_model_with_open_first_dimensions_is_batched_and_its_rows_lack_them() -> None:
    signature = read(identities((["n", 3, "length"], [None, 3, "length"]), (["m"], ["m"])))
    assert signature == Signature(
        inputs=(TensorSpec("x0", FP32, (3, -1)), TensorSpec("x1", FP32, (1,), reshape=())),
        outputs=(TensorSpec("y0", FP32, (3, -1)), TensorSpec("y1", FP32, (1,), reshape=())),
        batched=True,
    )


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(([1, 4], [1, 4]), id="fixed first dimension"),
        pytest.param(([], []), id="scalar"),
    ],
)
def test_one_tensor_without_an_open_first_dimension_makes_the_model_unbatched(pair: tuple[Shape, Shape]) -> None:
    signature = read(identities((["n", 2], ["n", 2]), pair))
    assert not signature.batched
    assert signature.inputs[0].shape == (-1, 2)
    assert signature.inputs[1].graph_shape == tuple(pair[0])
    assert signature.inputs[1].shape == (tuple(pair[0]) or (1,))


def test_a_model_with_one_fixed_output_is_unbatched() -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)
    signature = read(session([node], [tensor("x", ["n", 2])], [tensor("y", [1, 1])]))
    assert not signature.batched
    assert signature.outputs == (TensorSpec("y", FP32, (1, 1)),)


def test_a_model_without_inputs_is_unbatched() -> None:
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [3])
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"])
    signature = read(session([node], [], [tensor("y", ["n"])], [shape]))
    assert (signature.inputs, signature.batched) == ((), False)


def test_rows_without_dimensions_are_shown_with_one_of_size_1_whatever_config_yaml_calls_them() -> None:
    model = identities((["n"], ["n"]))
    for inputs in ({}, {"x0": (-1,)}):
        [tensor] = read(model, inputs).inputs
        assert (tensor.shape, tensor.reshape) == ((1,), ())
    with pytest.raises(ConfigurationError, match=r"input_shapes\.x0: has 2 dimensions, the graph has 1"):
        read(model, {"x0": (-1, 1)})


def test_rows_of_one_number_are_not_taken_for_rows_without_dimensions() -> None:
    [tensor] = read(identities((["n", 1], ["n", 1]))).inputs
    assert (tensor.shape, tensor.reshape) == ((1,), None)


def test_a_tensor_of_one_dimension_is_shown_as_it_is_where_nothing_is_batched() -> None:
    signature = read(identities((["n"], ["n"]), ([4], [4])))
    assert not signature.batched
    assert [(tensor.shape, tensor.reshape) for tensor in signature.inputs] == [((-1,), None), ((4,), None)]


def test_initializers_that_are_inputs_too_are_left_alone_where_config_yaml_does_not_name_them() -> None:
    signature = read(with_optional_weights())
    assert signature.inputs == (TensorSpec("x", FP32, (2,)),)
    assert signature.batched


def test_initializers_that_config_yaml_names_are_optional_follow_the_required_ones_and_rule_out_batching() -> None:
    model = with_optional_weights()
    signature = read(model, {"w": (2,)})
    assert signature.inputs == (TensorSpec("x", FP32, (-1, 2)), TensorSpec("w", FP32, (2,), optional=True))
    assert not signature.batched
    # What optional promises: ONNX Runtime runs with the input and without it.
    rows = np.ones((1, 2), np.float32)
    np.testing.assert_array_equal(model.run(None, {"x": rows})[0], [[1, 2]])
    np.testing.assert_array_equal(model.run(None, {"x": rows, "w": np.array([5, 6], np.float32)})[0], [[5, 6]])


def test_inputs_of_optional_type_are_optional_and_may_be_left_out_of_a_run() -> None:
    model = with_optional_type()
    signature = read(model)
    assert signature.inputs == (TensorSpec("z", FP32, (-1, 2)), TensorSpec("x", FP32, (-1, 2), optional=True))
    assert not signature.batched
    rows = np.ones((1, 2), np.float32)
    assert not model.run(["given"], {"z": rows})[0]
    assert model.run(["given"], {"z": rows, "x": rows})[0]


@pytest.mark.parametrize(
    ("element", "name"),
    [
        (TensorProto.BOOL, "BOOL"),
        (TensorProto.UINT8, "UINT8"),
        (TensorProto.UINT16, "UINT16"),
        (TensorProto.UINT32, "UINT32"),
        (TensorProto.UINT64, "UINT64"),
        (TensorProto.INT8, "INT8"),
        (TensorProto.INT16, "INT16"),
        (TensorProto.INT32, "INT32"),
        (TensorProto.INT64, "INT64"),
        (TensorProto.FLOAT16, "FP16"),
        (TensorProto.FLOAT, "FP32"),
        (TensorProto.DOUBLE, "FP64"),
        (TensorProto.STRING, "BYTES"),
        (TensorProto.BFLOAT16, "BF16"),
    ],
)
def test_every_element_type_of_the_protocol_is_read(element: int, name: str) -> None:
    signature = read(identities((["n"], ["n"]), element=element))
    assert signature.inputs[0].datatype is signature.outputs[0].datatype is BY_NAME[name]


def test_config_yaml_narrows_open_dimensions() -> None:
    model = identities((["n", 2, "length"], ["n", 2, "length"]))
    signature = read(model, {"x0": (-1, 2, 50)}, {"y0": (-1, 2, 50)})
    assert signature.batched
    assert (signature.inputs[0].shape, signature.outputs[0].shape) == ((2, 50), (2, 50))


def test_config_yaml_may_fix_every_dimension_of_an_unbatched_model() -> None:
    model = identities((["n", "m"], ["n", "m"]), ([4], [4]))
    assert read(model, {"x0": (3, 5), "x1": (4,)}).inputs[0].shape == (3, 5)


def test_config_yaml_settles_a_rank_that_the_graph_leaves_open() -> None:
    # Without axes, Squeeze drops whichever dimensions turn out to be 1.
    model = session([helper.make_node("Squeeze", ["x"], ["y"])], [tensor("x", ["n", 8])], [tensor("y", None)])
    assert not read(model).batched
    signature = read(model, None, {"y": (-1, 8)})
    assert signature.batched
    assert signature.outputs == (TensorSpec("y", FP32, (8,)),)


# Each row: input shapes of config.yaml for x0 [n, 2, length], then what the error must say.
MISFITS = {
    "no such input": (
        {"x1": (-1, 2, 50)},
        "input_shapes.x1: the model has no such input (got [-1, 2, 50])",
        "inputs: x0",
    ),
    "rank": ({"x0": (-1, 2)}, "input_shapes.x0: has 2 dimensions, the graph has 3 (got [-1, 2])", "[-1, 2, -1]"),
    "fixed size": ({"x0": (-1, 3, 50)}, "input_shapes.x0: differs from a size that the graph fixes", "[-1, 2, -1]"),
    "open again": ({"x0": (-1, -1, 50)}, "input_shapes.x0: differs from a size that the graph fixes", "[-1, 2, -1]"),
    "fixed batch": ({"x0": (8, 2, 50)}, "input_shapes.x0: the first dimension is the batch dimension", "[-1, 2, -1]"),
}


@pytest.mark.parametrize(("shapes", "problem", "remedy"), MISFITS.values(), ids=MISFITS.keys())
def test_a_configured_shape_that_contradicts_the_graph_is_refused(
    shapes: dict[str, tuple[int, ...]], problem: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(identities((["n", 2, "length"], ["n", 2, "length"])), shapes)
    said = str(caught.value)
    assert said.startswith(f"{SOURCE}: {problem}")
    assert remedy in said.partition("; ")[2]


def test_a_batch_dimension_left_open_for_a_graph_that_fixes_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"input_shapes\.x0: differs .* \(got \[-1, 2\]\); write \[1, 2\]"):
        read(identities(([1, 2], [1, 2])), {"x0": (-1, 2)})


def test_an_output_shape_for_no_output_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"output_shapes\.softmax: the model has no such output .*: y0"):
        read(identities((["n"], ["n"])), None, {"softmax": (-1,)})


def cast_to(element: int) -> onnxruntime.InferenceSession:
    return session(
        [helper.make_node("Cast", ["x"], ["y"], to=element)], [tensor("x", ["n"])], [tensor("y", ["n"], element)]
    )


def test_a_sequence_is_refused_by_name_and_type() -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    values = [helper.make_value_info(name, kind) for name in "xy"]
    with pytest.raises(ModelLoadError, match=r"input 'x' has the type seq\(tensor\(float\)\), which the inference"):
        read(session([helper.make_node("Identity", ["x"], ["y"])], values[:1], values[1:]))


def test_an_optional_sequence_is_refused_with_its_whole_type() -> None:
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    value = helper.make_value_info("x", helper.make_optional_type_proto(sequence))
    node = helper.make_node("OptionalHasElement", ["x"], ["y"])
    with pytest.raises(ModelLoadError, match=r"input 'x' has the type optional\(seq\(tensor\(float\)\)\)"):
        read(session([node], [value], [tensor("y", [], TensorProto.BOOL)]))


def test_an_optional_output_is_refused() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    values = [helper.make_value_info(name, kind) for name in "xy"]
    with pytest.raises(ModelLoadError, match=r"output 'y' has the type optional\(tensor\(float\)\)"):
        read(session([helper.make_node("Identity", ["x"], ["y"])], values[:1], values[1:]))


@pytest.mark.parametrize(("element", "name"), [(TensorProto.FLOAT8E4M3FN, "float8e4m3fn"), (TensorProto.INT4, "int4")])
def test_an_element_type_outside_the_protocol_is_refused_by_name_and_type(element: int, name: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"output 'y' has the type tensor\({name}\)"):
        read(cast_to(element))


def test_the_maps_of_a_classifier_are_refused_with_the_way_to_export_it_without() -> None:
    class Arg:
        name, type, shape = "probabilities", "seq(map(int64,tensor(float)))", ()

    class Classifier:
        def get_inputs(self) -> list[Arg]:
            return []

        def get_overridable_initializers(self) -> list[Arg]:
            return []

        def get_outputs(self) -> list[Arg]:
            return [Arg()]

    with pytest.raises(ModelLoadError, match=r"'probabilities' has the type seq.map.* zipmap=False"):
        read(Classifier())


# --- other shapes for clients, and what config.pbtxt declares --------------------------------------------------------


def read_with(session: onnxruntime.InferenceSession, declared: Declared | None = None, **settings: Any) -> Signature:
    return read_signature(session, ModelSettings(**settings), source=SOURCE, declared=declared)


def test_clients_may_see_other_shapes_than_the_graph_has() -> None:
    signature = read_with(
        identities((["n", 1, "a", 6], ["n", 1, "a", 6])),
        input_wire_shapes={"x0": (-1, -1, 2, 3)},
        output_wire_shapes={"y0": (-1, -1, 6)},
    )
    [x], [y] = signature.inputs, signature.outputs
    assert (x.shape, x.reshape, x.graph_shape) == ((-1, 2, 3), (1, -1, 6), (1, -1, 6))
    assert (y.shape, y.reshape) == ((-1, 6), (1, -1, 6))


def test_a_shape_for_clients_that_is_the_graph_s_changes_nothing() -> None:
    session = identities((["n", 3], ["n", 3]))
    assert read_with(session, input_wire_shapes={"x0": (-1, 3)}) == read_with(session)


@pytest.mark.parametrize("wire", [(-1, 4), (3, -1), (-1, -1), (3,)])
def test_a_shape_for_clients_that_cannot_become_the_graph_s_is_refused(wire: tuple[int, ...]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"config\.yaml: input_wire_shapes\.x0: cannot become the graph's shape"
    ):
        read_with(identities((["n", 3], ["n", 3])), input_wire_shapes={"x0": wire})


def test_batching_may_be_switched_off() -> None:
    signature = read_with(identities((["n", 3], ["n", 3])), batching=False)
    assert not signature.batched
    assert signature.inputs[0].shape == (-1, 3)


def test_outputs_may_be_left_out_and_inputs_required() -> None:
    signature = read_with(
        identities((["n", 3], ["n", 3]), (["n", 3], ["n", 3])), outputs=("y1",), required_inputs=("x0",)
    )
    assert [tensor.name for tensor in signature.outputs] == ["y1"]
    weighted = read_with(with_optional_weights(), input_shapes={"w": (2,)}, required_inputs=("w",))
    assert [(tensor.name, tensor.optional) for tensor in weighted.inputs] == [("x", False), ("w", False)]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"outputs": ("y",)}, r"outputs: the model has no such output \(got 'y'\); did you mean 'y0'\?"),
        (
            {"required_inputs": ("q",)},
            r"required_inputs: the model has no such input \(got 'q'\); the model's inputs: x0",
        ),
        ({"output_wire_shapes": {"y": (1,)}}, r"output_wire_shapes\.y: the model has no such output"),
    ],
)
def test_a_name_that_is_no_tensor_s_is_refused(settings: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read_with(identities((["n", 3], ["n", 3])), **settings)


def declares(*inputs: DeclaredTensor, outputs: Sequence[DeclaredTensor] = (), max_batch_size: int = 0) -> Declared:
    return Declared(Path("m/config.pbtxt"), "m", max_batch_size, inputs, tuple(outputs))


def of(name: str, *shape: int, dims: tuple[int, ...] | None = None, optional: bool = False) -> DeclaredTensor:
    return DeclaredTensor(name, "TYPE_FP32", dims if dims is not None else shape, shape, optional)


@pytest.mark.parametrize(
    ("declared", "batched", "shape"),
    [
        pytest.param(declares(), True, (-1, 3), id="nothing"),
        pytest.param(declares(max_batch_size=4), True, (-1, 3), id="batch size alone"),
        pytest.param(declares(of("x0", 7, 3)), True, (7, 3), id="inputs alone: completed"),
        pytest.param(declares(of("x0", 7, 3), max_batch_size=4), True, (7, 3), id="inputs and batch size"),
        pytest.param(
            declares(of("x0", -1, 3), outputs=[of("y0", -1, 3)], max_batch_size=4), True, (-1, 3), id="everything"
        ),
        pytest.param(
            declares(of("x0", -1, 8, 3), outputs=[of("y0", -1, -1, 3)]), False, (-1, 8, 3), id="no batch size"
        ),
        pytest.param(
            declares(of("x0", -1, 3, dims=(-1, 3, 1)), outputs=[of("y0", -1, 3)], max_batch_size=4),
            True,
            (-1, 3, 1),
            id="reshaped",
        ),
    ],
)
def test_what_is_declared_narrows_the_graph(declared: Declared, batched: bool, shape: tuple[int, ...]) -> None:
    graph = identities((["n", "a", 3], ["n", "a", 3]))
    batching = bool(declared.max_batch_size) or not declared.is_complete
    signature = read_with(graph, declared, batching=batching)
    assert (signature.batched, signature.inputs[0].shape) == (batched, shape)


def test_an_initializer_that_is_declared_is_optional_if_it_says_so() -> None:
    outputs = [of("y", -1, 2)]
    for optional in (True, False):
        declared = declares(of("x", -1, 2), of("w", 2, optional=optional), outputs=outputs)
        signature = read_with(with_optional_weights(), declared, batching=False)
        assert [(tensor.name, tensor.optional) for tensor in signature.inputs] == [("x", False), ("w", optional)]


DIFFERENT = {
    "too few inputs": (
        declares(of("x0", 3)), "unable to load model 'm', configuration expects 1 inputs, model provides 2; add x1",
    ),
    "another input": (
        declares(of("x0", 3), of("x1", 3), of("q", 3)), "unexpected inference input 'q', allowed inputs are: x0, x1",
    ),
    "another output": (
        declares(outputs=[of("q", 3)]), "unexpected inference output 'q', allowed outputs are: y0, y1",
    ),
    "datatype": (
        declares(outputs=[DeclaredTensor("y0", "TYPE_INT8", (3,), (3,))]),
        "unable to load model 'm', configuration expects datatype TYPE_INT8 for output 'y0', model provides TYPE_FP32",
    ),
    "rank": (
        declares(of("x0", 3, 1), of("x1", 3), max_batch_size=2),
        "model 'm', tensor 'x0': the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies "
        "3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making complete shape [-1,3,1]); write dims: [3]",
    ),
    "size without a batch": (
        declares(of("x0", 2, 4), of("x1", -1, 3), outputs=[of("y0", -1, 3)]),
        "model 'm', tensor 'x0': the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies "
        "2 dimensions (shape [2,4]); write dims: [-1, 3]",
    ),
    "an output that is narrowed": (
        declares(of("x0", -1, 3), of("x1", -1, 3), outputs=[of("y0", 5, 3)]),
        "model 'm', tensor 'y0': the model expects 2 dimensions (shape [-1,3]) but",
    ),
    "optional without a default": (
        declares(of("x0", -1, 3, optional=True), of("x1", -1, 3), outputs=[of("y0", -1, 3)]),
        "input 'x0' optional: the graph has no default for the input",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("declared", "problem"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_is_declared_otherwise_is_refused_in_triton_s_words(declared: Declared, problem: str) -> None:
    graph = identities((["n", 3], ["n", 3]), (["n", 3], ["n", 3]))
    with pytest.raises(ConfigurationError) as caught:
        read_with(graph, declared)
    assert str(caught.value).startswith("m/config.pbtxt: ")
    assert problem in str(caught.value)


def test_batching_of_a_graph_that_fixes_its_first_dimension_is_refused() -> None:
    graph = identities(([1, 3], [1, 3]))
    complete = declares(of("x0", 3), outputs=[of("y0", 3)], max_batch_size=8)
    problem = r"first dimension must be -1; but shape expected by the model is \[1,3\]; write max_batch_size: 0"
    with pytest.raises(ConfigurationError, match=problem):
        read_with(graph, complete)
    with pytest.raises(ConfigurationError, match="autofill failed for model 'm': model does not support batching"):
        read_with(graph, declares(max_batch_size=8))


def test_every_difference_is_told_at_once() -> None:
    declared = declares(of("q", 3), outputs=[of("y0", 4)], max_batch_size=2)
    with pytest.raises(ConfigurationError) as caught:
        read_with(identities((["n", 3], ["n", 3])), declared)
    assert len(str(caught.value).splitlines()) == 3
