"""What is observed of streamed requests: each has a line in the access log, with its own id, times and error."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.e2e.process import running
from tests.e2e.streams import conversation
from tests.e2e.support import Tensor, channel_to, request
from tests.waiting import wait_until


def test_each_message_has_a_line_of_its_own(repository: Path, tmp_path: Path) -> None:
    flags = ["--load-models", "mlp", "--access-log-rate", "1"]
    with running(repository, tmp_path, flags) as process:
        with channel_to(process.address) as channel, conversation(channel) as stream:
            for name in ("one", "two"):
                stream.send(request("mlp", Tensor.of("INPUT", "FP32", np.zeros((1, 64))), id=name))
            stream.send(request("nobody", id="three"))
            assert len(stream.end()) == 3
        wait_until(lambda: process.log.count("ModelInfer") >= 3)
        lines = [line for line in process.log.splitlines() if "ModelInfer" in line]
        # In the order in which they ended: the refused one was not run.
        assert [any(name in line for line in lines if "OK" in line) for name in ("one", "two", "nobody")] == [
            True,
            True,
            False,
        ]
        assert [line for line in lines if "NOT_FOUND" in line and "'nobody' is not found" in line]
        assert process.stop() == 0
