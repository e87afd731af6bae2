"""Small requests with tensors in shared memory: one thread beside the worker reads, runs and writes them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.models import add_model, versioned_model
from tests.e2e.regions import own_key
from tests.e2e.support import triton
from tests.server.inside import Inside, serve
from toutates.backends.onnx import loader
from toutates.engine.executor import Executor

shm = pytest.importorskip("tritonclient.utils.shared_memory")


def test_a_quick_request_is_read_run_and_written_in_the_thread_beside_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(tmp_path, "m1", versioned_model(1))
    monkeypatch.setattr(loader, "QUICK_NS", 2**61)  # whatever the machine takes for a run
    monkeypatch.setattr(loader, "_QUICK_ON_ONE_CORE_NS", 2**61)
    ran_in: list[str] = []
    run_inline = Executor.run_inline

    def noted(executor: Executor, *what: Any) -> None:
        ran_in.append(threading.current_thread().name)
        run_inline(executor, *what)

    monkeypatch.setattr(Executor, "run_inline", noted)

    def visit(inside: Inside) -> None:
        handle = shm.create_shared_memory_region("r", own_key("quick"), 32)
        try:
            with triton.InferenceServerClient(f"127.0.0.1:{inside.port}") as client:
                client.register_system_shared_memory("r", own_key("quick"), 32)
                given = triton.InferInput("INPUT", [1, 4], "INT32")
                given.set_shared_memory("r", 16)
                wanted = triton.InferRequestedOutput("OUTPUT")
                wanted.set_shared_memory("r", 16, 16)
                for turn in range(3):
                    shm.set_shared_memory_region(handle, [np.full(4, turn, np.int32)])
                    client.infer("m1", [given], outputs=[wanted])
                    assert shm.get_contents_as_numpy(handle, np.int32, [4], 16).tolist() == [turn + 1] * 4
        finally:
            shm.destroy_shared_memory_region(handle)

    assert serve(tmp_path, visit, allow_client_shm=True) == 0
    assert ran_in
    assert all(name.endswith("-objects") for name in ran_in)
