"""``toutates tune`` of models whose config.pbtxt declares their tensors: Python models, and those of frameworks."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import running
from tests.e2e.python_models import add_model
from toutates.command.main import main
from toutates.models.config.pbtxt import read_pbtxt
from toutates.tune import tuning

pytestmark = pytest.mark.timeout(600)  # some seconds each on an idle machine

#: Each run takes 10 ms, whatever it computes: larger batches and more instances are better on any machine.
SLEEPER = """
def execute(self, requests):
    time.sleep(0.01)
    return [answer(request, 2 * input_of(request)) for request in requests]
"""
DECOUPLED = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for factor in (1, 2):
            sender.send(answer(request, factor * input_of(request)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared here differs by far, or how it ends does not matter."""
    monkeypatch.setattr(tuning, "MOST_BLOCKS", 3)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tuned(tmp_path: Path, folder: Path, *flags: str) -> dict[str, Any]:
    told = tmp_path / "t.json"
    assert main(["tune", str(folder), "--seconds-per-point=0.2", "--concurrency=32", f"--json={told}", *flags]) == 0
    found = json.loads(told.read_text())
    assert not [one["fault"] for one in found["trials"] if one["fault"]]
    return dict(found)


def tried(found: dict[str, Any]) -> set[str]:
    return {key for one in found["trials"] for own in one["changes"].values() for key in own}


@pytest.mark.alone  # which configuration is better is measured
def test_a_python_model_that_batches_gets_larger_batches_and_more_instances(tmp_path: Path) -> None:
    folder = add_model(tmp_path / "models", "sleeper", SLEEPER, rows=2)
    before = files_of(folder)
    found = tuned(tmp_path, folder, "--points=6", "--write")
    assert tried(found) & {"batch_size", "num_executors"}
    assert found["chosen"]
    after = files_of(folder)
    assert after.pop("config.pbtxt.before") == before["config.pbtxt"]
    written = read_pbtxt(folder / "config.pbtxt")
    assert written is not None
    assert (written.max_batch_size, written.instance_group[0].count) > (2, 1)
    assert [*(one.name for one in written.input), *(one.name for one in written.output)] == ["x", "y"]
    assert after.keys() == before.keys()  # and no bytecode
    assert after["1/model.py"] == before["1/model.py"]
    with running(folder.parent, tmp_path, ["--load-models", "sleeper"]) as server:
        assert "loaded 1 of 1" in server.log
    # The next time the file before would be overwritten: that is told before anything is measured.
    assert main(["tune", str(folder), "--write"]) == 2


@pytest.mark.alone  # which configuration is better is measured
def test_of_a_python_model_that_does_not_batch_instances_are_tried_alone(tmp_path: Path) -> None:
    folder = add_model(tmp_path / "models", "single", SLEEPER, more="")
    output = tmp_path / "out"
    found = tuned(tmp_path, folder, f"--output={output}")
    assert tried(found) == {"num_executors"}
    assert found["chosen"]  # two sleep in the time of one
    assert {path.name for path in output.iterdir()} == {"config.pbtxt"}


@pytest.mark.long
def test_a_decoupled_model_is_asked_over_streams(tmp_path: Path) -> None:
    more = "dynamic_batching {} model_transaction_policy { decoupled: true }"
    folder = add_model(tmp_path / "models", "decoupled", DECOUPLED, more=more)
    before = files_of(folder)
    found = tuned(tmp_path, folder, "--points=3", f"--output={tmp_path / 'out'}")
    assert all(one["requests_per_second"] > 0 for one in found["trials"])
    assert files_of(folder) == before


@pytest.mark.long
def test_a_python_model_that_random_values_do_not_suit_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picky = """
def execute(self, requests):
    raise pb_utils.TritonModelException("these are no pictures")
"""
    folder = add_model(tmp_path / "models", "picky", picky)
    assert main(["tune", str(folder), f"--output={tmp_path / 'out'}"]) == 1
    told = capsys.readouterr().err
    assert "'picky' cannot be measured" in told
    assert "these are no pictures" in told
    assert "name requests by --data FILE" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.skipif(find_spec("lightgbm") is None, reason="LightGBM is not installed")
def test_a_lightgbm_model_is_tuned_in_what_it_has(tmp_path: Path) -> None:
    from examples.tabular.make_repository import CONFIG, train

    folder = tmp_path / "models" / "rent"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    train().save_model(folder / "1" / "model.txt")
    before = files_of(folder)
    found = tuned(tmp_path, folder, "--points=8", f"--output={tmp_path / 'out'}")
    assert "batch_size" in tried(found)
    assert tried(found) <= {"batch_size", "num_executors", "parameters.threads", "max_queue_delay_us"}
    assert files_of(folder) == before
    # By what its file says alone, a config.yaml does.
    (folder / "config.pbtxt").unlink()
    found = tuned(tmp_path, folder, "--points=2", f"--output={tmp_path / 'other'}")
    assert len(found["trials"]) == 2
