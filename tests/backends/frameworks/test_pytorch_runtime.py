"""PyTorch's Python runtime: modules in model.py with their weights, and TorchScript, in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.backends.frameworks.support import inspect, refused
from tests.e2e.process import ServerProcess, running

torch = pytest.importorskip("torch", reason="is not installed: the extra pytorch")
triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

CODE = """
import torch
from torch.nn import Linear, ReLU

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = Linear(4, 3)

    def forward(self, left, right):
        return self.linear(left + right), left
"""
CONFIG = """
backend: "pytorch" runtime: "model.py" max_batch_size: 8 dynamic_batching {}
input [ { name: "left" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "right" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "same" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
OPTIONS = 'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"model\\": 1}" } }'


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    arrays = {"linear.weight": rng.random((3, 4), np.float32), "linear.bias": rng.random(3, np.float32)}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def write(root: Path, name: str = "m", code: str = CODE, config: str = CONFIG) -> Path:
    version = root / name / "1"
    version.mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    if code:
        (version / "model.py").write_text(code)
    return version


#: Modules that give the sum of all left and right, by how they keep it.
KEEPS = {
    "writes": CODE.replace("self.linear = Linear(4, 3)", "self.register_buffer('total', torch.zeros(1, 4))").replace(
        "return self.linear(left + right), left",
        "self.total.add_(left + right)\n        return self.total[:, :3], self.total",
    ),
    "sets": CODE.replace("self.linear = Linear(4, 3)", "self.register_buffer('total', torch.zeros(1, 4))").replace(
        "return self.linear(left + right), left",
        "self.total = self.total + left + right\n        return self.total[:, :3], self.total",
    ),
}
STATELESS = 'parameters { key: "stateless" value { string_value: "true" } }'

#: Models that cannot be made, and why.
WRONG = {
    "classless": ("x = 3", CONFIG, "Cannot find a subclass of torch.nn.Module"),
    "raising": (CODE.replace("super().__init__()", "raise ValueError('nothing')"), CONFIG, "ValueError: nothing"),
    "strings": (CODE, CONFIG.replace("FP32", "STRING"), "tensor 'left' is of strings"),
    "options": (CODE, CONFIG + OPTIONS, "'model' is not an optional parameter for 'torch.compile'"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    torch.save(weights(), write(root) / "model.pt")
    write(root, "other", CODE.replace("), left", "), left[:, :2]"))

    class Script(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, left: Any, right: Any) -> Any:
            return left[:, :3] + right[:, :3], left

    traced = torch.jit.trace(Script(), (torch.ones(2, 4), torch.ones(2, 4)))
    traced.save(str(write(root, "script", "") / "model.pt"))
    for change, code in KEEPS.items():
        write(root, change, code)
        write(root, f"{change}-stateless", code, CONFIG + STATELESS)
    for name, (code, config, _) in WRONG.items():
        write(root, name, code, config)
    with running(root, tmp_path_factory.mktemp("log"), ["--processing-cores", "1"]) as process:
        yield process


def ask(server: ServerProcess, model: str, left: Any, right: Any) -> Any:
    tensors = []
    for name, rows in (("right", right), ("left", left)):
        tensors.append(triton.InferInput(name, list(rows.shape), "FP32"))
        tensors[-1].set_data_from_numpy(rows)
    with triton.InferenceServerClient(server.address) as client:
        result = client.infer(model, tensors, client_timeout=120)
    return result.as_numpy("sum"), result.as_numpy("same")


@pytest.mark.parametrize("rows", [1, 8, 19])
def test_a_class_runs_with_the_weights_beside_it(server: ServerProcess, rows: int) -> None:
    left, right = np.random.default_rng(rows).random((2, rows, 4), np.float32)
    total, same = ask(server, "m", left, right)
    known = weights()
    expected = (left + right) @ known["linear.weight"].numpy().T + known["linear.bias"].numpy()
    npt.assert_allclose(total, expected, rtol=1e-5)
    npt.assert_array_equal(same, left)


def test_a_file_of_torchscript_runs_too(server: ServerProcess) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    total, same = ask(server, "script", rows, rows)
    npt.assert_array_equal(total, rows[:, :3] * 2)
    npt.assert_array_equal(same, rows)


def test_outputs_of_another_shape_are_sent(server: ServerProcess) -> None:
    rows = np.ones((1, 4), np.float32)
    npt.assert_array_equal(ask(server, "other", rows, rows)[1], rows[:, :2])


@pytest.mark.parametrize("how", KEEPS)
def test_what_a_module_writes_to_its_buffers_is_not_seen_by_the_next_caller(server: ServerProcess, how: str) -> None:
    rows = np.ones((1, 4), np.float32)
    for _ in range(3):
        _, total = ask(server, f"{how}-stateless", rows, rows)
        npt.assert_array_equal(total, 2 * rows)
        with pytest.raises(Exception, match="has written to its buffer total, which the next caller would see"):
            ask(server, how, rows, rows)


@pytest.mark.parametrize("name", WRONG)
def test_a_module_that_cannot_be_made_is_not_served(server: ServerProcess, name: str) -> None:
    with triton.InferenceServerClient(server.address) as client:
        [reason] = [one.reason for one in client.get_model_repository_index().models if one.name == name]
    assert WRONG[name][2] in reason


def test_what_check_says(tmp_path: Path) -> None:
    write(tmp_path)
    config = inspect(tmp_path).config()
    assert (config.backend, config.runtime, config.default_model_filename) == ("pytorch", "model.py", "model.py")
    write(tmp_path, "empty", "")
    assert "No model found in" in refused(tmp_path, "empty")
