"""The server in the place of Triton's: started as ``tritonserver``, with the arguments that Triton gets from KServe."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.e2e.forking import fork
from tests.e2e.process import PYTHON, ServerProcess, environment, wait_serving
from tests.e2e.support import triton
from tests.triton_repository import negative
from tests.waiting import wait_until


def test_arguments_of_kserve_serve_a_graph_that_appears_late_behind_links(tmp_path: Path) -> None:
    # As Kubernetes projects a volume: the files lie in a directory that a link names, and links lead through that.
    volume = tmp_path / "volume"
    (volume / "..2026_11_22").mkdir(parents=True)
    (volume / "..2026_11_22" / "model.onnx").write_bytes(negative().SerializeToString())
    (volume / "..data").symlink_to("..2026_11_22")
    (volume / "model.onnx").symlink_to("..data/model.onnx")
    store, log = tmp_path / "models", tmp_path / "log"
    log.touch()
    # KServe's own, and addresses beside which other tests can run.
    kserve = [f"--model-store={store}", "--grpc-port=0", "--http-port=0", "--allow-grpc=true", "--allow-http=true"]
    here = ["--grpc-address=127.0.0.1", "--http-address=127.0.0.1", "--metrics-port", "0", "--model-name", "resnet"]
    process = fork(PYTHON, ["toutates", "tritonserver", *kserve, *here], environment(), log)
    try:
        wait_until(lambda: f"the model repository '{store}' is not there yet" in log.read_text() or process.poll())
        store.symlink_to(volume)
        server = ServerProcess(process, wait_serving(process, log), log)
        values = np.arange(8, dtype=np.float32).reshape(2, 4)
        tensor = triton.InferInput("INPUT", [2, 4], "FP32")
        tensor.set_data_from_numpy(values)
        with triton.InferenceServerClient(server.address) as client:
            assert client.is_server_ready()
            assert client.get_model_metadata("resnet").versions == ["1"]
            np.testing.assert_array_equal(client.infer("resnet", [tensor]).as_numpy("OUTPUT"), -values)
        assert "--http-port has no effect" not in server.log
        assert server.stop() == 0
        assert "Traceback" not in server.log
    finally:
        if process.poll() is None:
            process.kill()
