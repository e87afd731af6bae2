"""PyTorch's models: TorchScript, and files of torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.frameworks.support import inspect, predict, refused
from tests.backends.plugins.packages import write_model
from toutates.backends.plugins.kind import PluginKind
from toutates.models.config.configuration import load_configuration
from toutates.models.repository import scan_model

torch = pytest.importorskip("torch", reason="is not installed: the extra pytorch")

# TorchScript is on its way out, and yet what Triton's repositories hold.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")


def two() -> Any:
    class Two(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, left: Any, right: Any) -> Any:
            return left + right, left - right

    return Two().eval()


def tensors(inputs: list[str], outputs: list[str], datatype: str = "FP32") -> str:
    written = [f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: 3 }}' for name in inputs]
    written += [f'output {{ name: "{name}" data_type: TYPE_{datatype} dims: 3 }}' for name in outputs]
    return 'platform: "pytorch_libtorch" max_batch_size: 8 ' + " ".join(written)


def save(root: Path, config: str) -> Path:
    path = write_model(root, "m", config) / "model.pt"
    torch.jit.trace(two(), (torch.ones(2, 3), torch.ones(2, 3))).save(str(path))
    return path


A, B = np.full((2, 3), 5, np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)

NAMES = {
    "positions": (["INPUT__1", "INPUT__0"], ["OUTPUT__1", "OUTPUT__0"], "INPUT__0", "INPUT__1", "OUTPUT__0"),
    "arguments": (["right", "left"], ["sum", "difference"], "left", "right", "sum"),
    "order": (["a", "b"], ["c", "d"], "a", "b", "c"),
}


@pytest.mark.parametrize(("inputs", "outputs", "left", "right", "total"), NAMES.values(), ids=NAMES.keys())
def test_tensors_are_named_by_each_of_tritons_conventions(
    tmp_path: Path, inputs: list[str], outputs: list[str], left: str, right: str, total: str
) -> None:
    save(tmp_path, tensors(inputs, outputs))
    got = predict(tmp_path, {left: A, right: B})
    npt.assert_array_equal(got.pop(total), A + B)
    [difference] = got.values()
    npt.assert_array_equal(difference, A - B)
    config = inspect(tmp_path).config()
    assert (config.backend, config.default_model_filename) == ("pytorch", "model.pt")


def test_bfloat16_goes_in_and_out_by_its_bits(tmp_path: Path) -> None:
    save(tmp_path, tensors(["INPUT__0", "INPUT__1"], ["OUTPUT__0", "OUTPUT__1"], "BF16"))
    bits = (np.full((1, 3), 1.5, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    got = predict(tmp_path, {"INPUT__0": bits, "INPUT__1": bits})["OUTPUT__0"]
    npt.assert_array_equal((got.astype(np.uint32) << 16).view(np.float32), [[3, 3, 3]])


def test_a_file_of_torch_export_needs_the_operators_word(tmp_path: Path) -> None:
    from toutates.backends.frameworks.pytorch import PyTorch
    from toutates.backends.interface import Instance, Source, Tensor

    path = write_model(tmp_path, "m", tensors(["ARGS[0]", "ARGS[1]"], ["RESULT[0]", "RESULT[1]"])) / "model.pt2"
    rows = torch.export.Dim("rows", max=64)
    example = torch.ones(2, 3), torch.ones(2, 3)
    torch.export.save(torch.export.export(two(), example, dynamic_shapes=({0: rows}, {0: rows})), path)
    said = refused(tmp_path)
    assert "'model.pt2' is a file of torch.export, which may hold pickles" in said
    assert "--allow-pickle" in said
    declared = [[Tensor(f"{side}[{at}]", "FP32", (-1, 3)) for at in (0, 1)] for side in ("ARGS", "RESULT")]
    backend = PyTorch()
    backend.load(Source("m", 1, path.parent, path, inputs=declared[0], outputs=declared[1], allow_pickle=True))
    got = cast(Instance, backend.instance(0, "cpu")).run({"ARGS[0]": A, "ARGS[1]": B})
    npt.assert_array_equal(got["RESULT[1]"], A - B)


#: Sums of all x, by what keeps them, and what is named.
SUMS = {
    "buffer": ("AddsToBuffer", "script", "it writes to total;"),
    "traced": ("AddsToBuffer", "trace", "it writes to total;"),
    "attribute": ("SetsAttributeOfPart", "script", "it writes to part.rows;"),
    "list": ("Grows", "script", "it writes to seen;"),
    "parameter": ("AddsToParameter", "script", "it writes to w;"),
}
ONE = (
    'backend: "pytorch" input { name: "x" data_type: TYPE_FP32 dims: [ 1, 3 ] } '
    'output { name: "y" data_type: TYPE_FP32 dims: [ 1, 3 ] } '
)
STATELESS = 'parameters { key: "stateless" value { string_value: "true" } }'


def made_of(name: str) -> Any:
    from tests.backends.frameworks import torch_modules

    return getattr(torch_modules, name)()


def save_sum(root: Path, made: str, how: str, config: str) -> None:
    path = write_model(root, "m", config) / "model.pt"
    module = made_of(made)
    with torch.no_grad():
        module = torch.jit.script(module) if how == "script" else torch.jit.trace(module, torch.zeros(1, 3))
    module.save(str(path))


def opened(root: Path) -> Any:
    kind = PluginKind()
    return kind.open("m", load_configuration(scan_model(root / "m").versions[-1], kind.backends))


@pytest.mark.parametrize(("made", "how", "named"), SUMS.values(), ids=SUMS.keys())
def test_a_module_that_writes_to_what_it_keeps_is_refused_with_the_remedy(
    tmp_path: Path, made: str, how: str, named: str
) -> None:
    save_sum(tmp_path, made, how, ONE)
    said = refused(tmp_path)
    assert named in said
    assert "write sequence_batching { }" in said
    assert "stateless: true" in said


@pytest.mark.parametrize(("made", "how", "named"), SUMS.values(), ids=SUMS.keys())
def test_each_run_of_a_stateless_module_begins_with_a_fresh_state(
    tmp_path: Path, made: str, how: str, named: str
) -> None:
    save_sum(tmp_path, made, how, f"{ONE} {STATELESS} instance_group {{ count: 2 kind: KIND_CPU }}")
    loaded, x = opened(tmp_path), np.array([[1, 2, 3]], np.float32)
    try:
        for runner in loaded.plain * 2:
            [y] = runner.run_arrays({0: x})
            npt.assert_array_equal(y, x)
    finally:
        loaded.close()


@pytest.mark.parametrize(("made", "how", "named"), SUMS.values(), ids=SUMS.keys())
def test_each_sequence_of_a_module_has_a_state_of_its_own(tmp_path: Path, made: str, how: str, named: str) -> None:
    save_sum(tmp_path, made, how, ONE + "sequence_batching { oldest { max_candidate_sequences: 2 } }")
    loaded, x = opened(tmp_path), np.array([[1, 2, 3]], np.float32)

    def run(slot: int, *, begins: bool = False) -> Any:
        [y] = loaded.plain[0].run_arrays({0: x, 1: np.array([~slot if begins else slot], np.int32)})
        return y

    try:
        outputs = [run(0, begins=True), run(1, begins=True), run(0), run(0), run(1), run(1, begins=True), run(0)]
        # Also what came first is as it was.
        for times, y in zip((1, 1, 2, 3, 2, 1, 4), outputs, strict=True):
            npt.assert_array_equal(y, times * x)
        assert inspect(tmp_path).signature.inputs[0].name == "x"
        assert len(inspect(tmp_path).signature.inputs) == 1
    finally:
        loaded.close()


def test_an_exported_program_that_writes_to_its_buffers_is_refused(tmp_path: Path) -> None:
    from toutates.backends.frameworks.pytorch import PyTorch
    from toutates.backends.interface import Source, Tensor
    from toutates.system.errors import ConfigurationError

    path = write_model(tmp_path, "m", ONE) / "model.pt2"
    for module in (made_of("AddsToBuffer"), torch.nn.BatchNorm1d(3)):
        example = torch.zeros(2, 3) if isinstance(module, torch.nn.BatchNorm1d) else torch.zeros(1, 3)
        torch.export.save(torch.export.export(module, (example,)), path)
        declared = [[Tensor(name, "FP32", tuple(example.shape))] for name in ("x", "y")]
        source = Source("m", 1, path.parent, path, inputs=declared[0], outputs=declared[1], allow_pickle=True)
        with pytest.raises(ConfigurationError, match="it writes to "):
            PyTorch().load(source)


def test_buffers_that_are_only_read_are_no_state(tmp_path: Path) -> None:
    parts = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
    torch.jit.script(parts).save(str(write_model(tmp_path, "m", ONE) / "model.pt"))
    x = np.ones((1, 3), np.float32)
    assert predict(tmp_path, {"x": x})["y"].shape == (1, 3)


def test_what_is_written_in_a_later_run_alone_is_undone_and_that_run_fails(tmp_path: Path) -> None:
    from toutates.system.errors import ExecutionFailed

    save_sum(tmp_path, "Late", "script", ONE)
    loaded, x = opened(tmp_path), np.ones((1, 3), np.float32)
    try:
        for _ in range(2):
            npt.assert_array_equal(loaded.plain[0].run_arrays({0: x})[0], x)
            with pytest.raises(ExecutionFailed, match="the module has written to total, which the next caller would"):
                loaded.plain[0].run_arrays({0: 100 * x})
    finally:
        loaded.close()


def test_a_scalar_stays_one(tmp_path: Path) -> None:
    config = ONE.replace("dims: [ 1, 3 ]", "dims: [ 1 ] reshape { shape: [ ] }", 1)
    path = write_model(tmp_path, "m", config) / "model.pt"

    torch.jit.script(made_of("Spread")).save(str(path))
    npt.assert_array_equal(predict(tmp_path, {"x": np.array(4, np.float32)})["y"], [[4, 4, 4]])


REFUSED = {
    "no tensors": ('backend: "pytorch"', "declare every input and output in config.pbtxt"),
    "gaps": (tensors(["INPUT__0", "INPUT__2"], ["OUTPUT__0"]), "the positions are not 0, 1, 2 and so on"),
    "strings": (tensors(["a", "b"], ["c"], "STRING"), "tensor 'a' is of strings"),
}


@pytest.mark.parametrize(("config", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path, config: str, said: str) -> None:
    save(tmp_path, config)
    assert said in refused(tmp_path)


@pytest.mark.parametrize("kept", [0, 5, 500])
def test_spoilt_files_are_refused(tmp_path: Path, kept: int) -> None:
    path = save(tmp_path, tensors(["a", "b"], ["c", "d"]))
    path.write_bytes(path.read_bytes()[:kept])
    said = refused(tmp_path)
    assert "PyTorch cannot load 'model.pt'" in said
    assert "\n" not in said


def test_outputs_that_the_model_does_not_give_fail_the_run(tmp_path: Path) -> None:
    from toutates.system.errors import ExecutionFailed

    save(tmp_path, tensors(["a", "b"], ["c", "d", "e"]))
    with pytest.raises(ExecutionFailed, match="the model gives 2 values, and no tensor for output 'e'"):
        predict(tmp_path, {"a": A, "b": B})
