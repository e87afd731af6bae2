"""Several workers on the same models, and clients of every manner: no answer is wrong, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.free_threading import assert_ran_without_gil
from tests.e2e.process import running
from tests.e2e.stress import MODELS, Storm, build_kinds

#: At least; a slow machine takes longer to send the requests below.
SECONDS = 2.0
REQUESTS_PER_CLIENT = 10


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_answer_of_several_workers_is_onnx_runtimes_own(tmp_path: Path, workers: int) -> None:
    (tmp_path / "models").mkdir()
    kinds = build_kinds(tmp_path / "models", seed=workers)
    flags = ["--load-models", ",".join(MODELS), "--processing-cores", str(workers)]
    with running(tmp_path / "models", tmp_path, flags) as server:
        storm = Storm(server, kinds, seed=workers)
        storm.rage(SECONDS, REQUESTS_PER_CLIENT)
        storm.check_calm()
        assert server.stop() == 0
        assert "Traceback" not in server.log
        assert_ran_without_gil(server)
    for model, tally in storm.tallies.items():
        assert tally.ok, model
        assert tally.left, model
    assert storm.executions["slow"] < storm.tallies["slow"].batches_alone, "no requests have shared a batch"
    assert storm.tallies["slow"].refused
    assert storm.tallies["gather"].poisoned
