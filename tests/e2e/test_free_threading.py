"""Free-threaded Python: a server on it serves without the GIL.

That nothing has switched it on later is asserted where servers have had to do: by the shared one and the stress test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.free_threading import assert_ran_without_gil, is_free_threaded
from tests.e2e.process import FRESH, ServerProcess, running


def test_server_says_at_the_start_how_it_runs(server: ServerProcess) -> None:
    assert ("without the GIL" in server.log) == is_free_threaded()


def test_server_with_the_gil_on_a_free_threaded_build_does_not_go_unnoticed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_free_threaded():
        pytest.skip("the server's interpreter is not free-threaded")
    monkeypatch.setenv("PYTHON_GIL", "1")
    with running(repository, tmp_path, ["--load-models", "fixed"], FRESH) as process:
        with pytest.raises(AssertionError):
            assert_ran_without_gil(process)
        assert process.stop() == 0
