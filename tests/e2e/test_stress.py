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
#: What comes by chance, such as requests that meet, is waited for in so many more storms.
MORE_STORMS = 20


def unseen(storm: Storm) -> list[str]:
    """What has to happen in a storm and has not yet."""
    tallies = storm.tallies
    happened = {
        "requests have shared a batch": storm.executions["slow"] < tallies["slow"].batches_alone,
        "a full ring has refused some": tallies["slow"].refused,
        "a row was poisoned": tallies["gather"].poisoned,
        **{f"requests to {model} were answered": tally.ok for model, tally in tallies.items()},
        **{f"clients of {model} have left": tally.left for model, tally in tallies.items()},
    }
    return [what for what, has_happened in happened.items() if not has_happened]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_answer_of_several_workers_is_onnx_runtimes_own(tmp_path: Path, workers: int) -> None:
    (tmp_path / "models").mkdir()
    kinds = build_kinds(tmp_path / "models", seed=workers)
    flags = ["--load-models", ",".join(MODELS), "--processing-cores", str(workers)]
    with running(tmp_path / "models", tmp_path, flags) as server:
        storm = Storm(server, kinds, seed=workers)
        storm.rage(SECONDS, REQUESTS_PER_CLIENT)
        storm.check_calm()
        for _ in range(MORE_STORMS):
            if not unseen(storm):
                break
            storm.rage(0, REQUESTS_PER_CLIENT)
            storm.check_calm()
        assert not unseen(storm)
        assert server.stop() == 0
        assert "Traceback" not in server.log
        assert_ran_without_gil(server)
