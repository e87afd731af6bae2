"""What the number of cores comes to: advice where some have nothing to do, and longer runs by workers on one."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.models import heavy_model
from tests.triton_repository import add_model, negative, write_config
from toutates.backends.onnx.loader import OnnxKind
from toutates.backends.onnx.opening import SessionOptions
from toutates.command.check import check_repository
from toutates.models.config.configuration import load_configuration
from toutates.models.config.settings import ModelSettings, SessionSettings
from toutates.models.idle_cores import idle_cores_advice
from toutates.models.repository import scan
from toutates.models.table import ServedVersion

MS = 1_000_000


@pytest.mark.parametrize(
    ("run_ms", "executors", "intra_threads", "cores", "said"),
    [
        (4, 1, 1, 16, False),
        (5, 1, 1, 16, True),
        (5, 1, 1, 1, False),
        (500, 4, 3, 16, True),
        (500, 4, 4, 16, False),
        (500, 16, 1, 16, False),
    ],
)
def test_advice_is_for_long_runs_that_leave_cores_idle(
    run_ms: int, executors: int, intra_threads: int, cores: int, said: bool
) -> None:
    settings = ModelSettings(num_executors=executors)
    assert bool(idle_cores_advice(run_ms * MS, settings, intra_threads, cores, "config.yaml")) is said


def test_advice_names_the_keys_of_the_file_that_configures_the_model() -> None:
    settings = ModelSettings()
    assert idle_cores_advice(23 * MS, settings, 1, 16, "config.yaml") == (
        "a run of one row takes 23 ms and batches use 1 of 16 cores at most; raise 'num_executors' in its config.yaml "
        "for more requests per second, or 'intra_threads' under 'session' (--ort-intra-threads for all models) for "
        "less time per request"
    )
    pbtxt = idle_cores_advice(23 * MS, settings, 1, 16, "config.pbtxt")
    assert "raise 'count' of 'instance_group' in its config.pbtxt" in pbtxt
    assert "the parameter 'intra_op_thread_count'" in pbtxt


def load(root: Path, model: str, monkeypatch: pytest.MonkeyPatch, cores: int = 16) -> ServedVersion:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    [folder] = [folder for folder in scan(root) if folder.name == model]
    kind = OnnxKind(SessionOptions())
    served = kind.load(model, load_configuration(folder.versions[0]))
    return served


@pytest.mark.parametrize("pbtxt", [False, True])
def test_loading_a_slow_model_says_so_and_a_quick_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pbtxt: bool
) -> None:
    add_model(tmp_path, "slow", heavy_model(100))
    add_model(tmp_path, "quick", negative())
    if pbtxt:
        write_config(tmp_path, "slow", "max_batch_size: 4")
    with caplog.at_level(logging.INFO):
        served: Any = load(tmp_path, "slow", monkeypatch)
        assert load(tmp_path, "quick", monkeypatch).advice == ""
    assert "of 16 cores at most" in served.advice
    assert f"its {'config.pbtxt' if pbtxt else 'config.yaml'} for more" in served.advice
    assert [record.getMessage() for record in caplog.records if "cores" in record.getMessage()] == [
        f"model 'slow' version 1: {served.advice}"
    ]


def test_threads_and_executors_that_take_all_cores_need_no_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(tmp_path, "slow", heavy_model(100))
    write_config(tmp_path, "slow", "max_batch_size: 4 instance_group { count: 2 }")
    assert load(tmp_path, "slow", monkeypatch, cores=2).advice == ""
    assert load(tmp_path, "slow", monkeypatch, cores=3).advice != ""
    settings = ModelSettings(session=SessionSettings(intra_threads=8))
    assert idle_cores_advice(50 * MS, settings, 8, 8, "config.yaml") == ""


def test_check_says_it_too_and_counts_it_as_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    add_model(tmp_path, "slow", heavy_model(100))
    add_model(tmp_path, "quick", negative())
    report = check_repository(tmp_path)
    [said] = [fact for fact in report.facts if "cores" in fact]
    assert said.startswith("slow 1: a run of one row takes ")
    assert report.warnings == []


def test_on_one_core_workers_do_longer_runs_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_model(tmp_path, "quick", negative())
    quick: dict[int, int] = {}
    for cores in (1, 2):
        served: Any = load(tmp_path, "quick", monkeypatch, cores)
        quick[cores] = served.servable.supertensor.quick_ns
    assert quick == {1: 150_000, 2: 50_000}
