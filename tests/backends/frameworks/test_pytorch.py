"""PyTorch's models: TorchScript, and files of torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.frameworks.support import inspect, predict, refused
from tests.backends.plugins.packages import write_model

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
    from toutates.backends.interface import Source, Tensor

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
    got = backend.instance(0, "cpu").run({"ARGS[0]": A, "ARGS[1]": B})
    npt.assert_array_equal(got["RESULT[1]"], A - B)


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
