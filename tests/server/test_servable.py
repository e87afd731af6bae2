"""A second kind of model, which no product code knows: it computes in NumPy, and is served beside ONNX models."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.graphs import DOUBLE
from tests.server import inside as inside_module
from tests.server.inside import Inside, serve
from tests.waiting import wait_until
from toutates.backends.onnx.loader import OnnxKind
from toutates.engine.batched import BatchedServable
from toutates.engine.lane import Batch
from toutates.engine.packing import OutputPacker
from toutates.engine.result import Outputs
from toutates.engine.supertensor import SuperTensor
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.describe import BackendName
from toutates.models.inspection import InspectedVersion
from toutates.models.manager import LoadOptions, ModelManager
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.address import Address

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
utils = pytest.importorskip("tritonclient.utils", reason="has no wheel for free-threaded Python")

FACTORS = "factors.npy"
SIGNATURE = Signature(
    (TensorSpec("x", BY_NAME["FP32"], (4,)),), (TensorSpec("y", BY_NAME["FP32"], (4,)),), batched=True
)


class Scale:
    """A backend: y = factors * x."""

    on_cpu = True
    one_thread = True

    def __init__(self, factors: Any, model: str) -> None:
        self.started_ns = self.ended_ns = 0
        self._factors = factors
        self._packer = OutputPacker(SIGNATURE, model)

    def run(self, batch: Batch, first: int, rows: int) -> Outputs:
        self.started_ns = time.monotonic_ns()
        [x] = batch.lane.inputs(batch, first, rows).values()
        y = np.asarray(self._factors * x, np.float32)
        self.ended_ns = time.monotonic_ns()
        return self._packer.pack([y], rows)

    def close(self) -> None:
        pass


class ScaleKind:
    """Versions that name the backend "numpy", or hold a file of factors."""

    backends = ("numpy",)

    def claims(self, version: VersionFolder) -> bool:
        return (version.path / FACTORS).exists()

    def load(self, model: str, configuration: VersionConfiguration) -> ServedVersion:
        version = configuration.folder
        factors = np.load(version.path / FACTORS)
        supertensor = SuperTensor(model, SIGNATURE, batch_size=8, capacity=4)
        backends = [Scale(factors, model), Scale(factors, model)]
        config = ModelConfig(name=model, backend="numpy", max_batch_size=8)
        return ServedVersion(model, version.number, config, BatchedServable(version.number, supertensor, backends))

    def inspect(self, model: str, configuration: VersionConfiguration, *, try_warmup: bool = False) -> InspectedVersion:
        return InspectedVersion.of(model, configuration, SIGNATURE, BackendName("numpy", filename=FACTORS))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("onnx", "numpy"):
        (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / "onnx" / "1" / "model.onnx").write_bytes(DOUBLE)
    np.save(tmp_path / "numpy" / "1" / FACTORS, np.array([1, 2, 3, 4], np.float32))

    class WithBoth(ModelManager):
        """A manager that was given both kinds."""

        def __init__(self, options: LoadOptions, *arguments: Any, **more: Any) -> None:
            assert OnnxKind in [type(kind) for kind in options.kinds]
            super().__init__(LoadOptions([ScaleKind(), *options.kinds], options.placement), *arguments, **more)

    monkeypatch.setattr(inside_module, "ModelManager", WithBoth)
    return tmp_path


def input_of(rows: Any) -> list[Any]:
    tensor = triton.InferInput("x", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    return [tensor]


def read(address: tuple[str, int], path: str) -> str:
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}{path}", timeout=120) as answer:
        return str(answer.read().decode())


def test_a_kind_that_computes_in_numpy_is_served_beside_onnx(repository: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)

    def visit(inside: Inside) -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{inside.port}") as client:
            client.load_model("numpy")
            client.load_model("onnx")
            assert client.is_model_ready("numpy")
            npt.assert_array_equal(client.infer("onnx", input_of(rows)).as_numpy("y"), 2 * rows)
            npt.assert_array_equal(client.infer("numpy", input_of(rows)).as_numpy("y"), rows * [1, 2, 3, 4])
            # More rows than a batch takes are split, and joined again.
            many = np.ones((19, 4), np.float32)
            npt.assert_array_equal(client.infer("numpy", input_of(many)).as_numpy("y"), many * [1, 2, 3, 4])
            with pytest.raises(utils.InferenceServerException, match="unexpected shape for input 'x'"):
                client.infer("numpy", input_of(np.ones((1, 5), np.float32)))
            metadata = client.get_model_metadata("numpy")
            assert (metadata.inputs[0].name, list(metadata.inputs[0].shape)) == ("x", [-1, 4])
            assert client.get_model_config("numpy").config.backend == "numpy"

            def count() -> int:
                [own] = client.get_inference_statistics("numpy").model_stats
                return int(own.inference_stats.success.count)

            wait_until(lambda: count() == 2)
            [own] = client.get_inference_statistics("numpy").model_stats
            assert own.inference_count == 22
            assert own.execution_count == 4
            assert {batch.batch_size: batch.compute_infer.count for batch in own.batch_stats} == {3: 2, 8: 2}
            address = inside.server.http_address
            assert address is not None
            metrics = read(address, "/metrics")
            assert 'nv_inference_count{model="numpy",version="1"} 22' in metrics
            assert 'toutates_executors{model="numpy",version="1"} 2' in metrics
            assert "numpy" in read(address, "/status.json")
            client.unload_model("numpy")
            with pytest.raises(utils.InferenceServerException):
                client.infer("numpy", input_of(rows))
            npt.assert_array_equal(client.infer("onnx", input_of(rows)).as_numpy("y"), 2 * rows)
            states = {one.name: one.state for one in client.get_model_repository_index().models}
            assert states["onnx"] == "READY"
            assert states["numpy"] != "READY"
            client.load_model("numpy")
            npt.assert_array_equal(client.infer("numpy", input_of(rows)).as_numpy("y"), rows * [1, 2, 3, 4])

    code = serve(repository, visit, model_control_mode="explicit", metrics_addr=Address("127.0.0.1", 0), load_models=())
    assert code == 0
