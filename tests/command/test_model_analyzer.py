"""The YAML file of Triton's Model Analyzer, as ``toutates tune`` reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from toutates.command.main import main
from toutates.command.tune.model_analyzer import Asked, read_analyzer_file
from toutates.command.tune.parser import tune_parser
from toutates.command.tune.reading import read_jobs
from toutates.system.errors import ConfigurationError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yml"


def read(file: Path, text: str) -> Asked:
    file.write_text(f"model_repository: /models\n{text}")
    return read_analyzer_file(file)


# As the documentation of Model Analyzer has it, with its own kinds of lists.
WHOLE = """
run_config_search_disable: true
triton_launch_mode: docker
triton_server_flags: {log_verbose: true}
output_model_repository_path: /out
profile_models:
  first:
    parameters:
      batch_sizes: 1,2,4
      concurrency: {start: 2, stop: 64, step: 8}
    objectives: [perf_latency_p99]
    constraints:
      perf_latency_p99: {max: 5}
      perf_throughput: {min: 1000}
    model_config_parameters:
      max_batch_size: [6, 8]
      dynamic_batching:
        preferred_batch_size: [[2], [3]]
        max_queue_delay_microseconds: [0, 200]
      instance_group:
        - - {kind: KIND_GPU, count: 1}
        - - {kind: KIND_CPU, count: [1, 2]}
    perf_analyzer_flags: {percentile: 95, shape: "INPUT:64", string-length: 8}
  second:
    cpu_only: true
batch_sizes: {start: 4, stop: 9}
concurrency: [2, 4, 8]
constraints:
  cpu_used_ram: {max: 500}
"""


def test_a_whole_file_is_read_with_what_means_nothing_named(file: Path) -> None:
    asked = read(file, WHOLE)
    assert (asked.repository, asked.output, asked.together) == (Path("/models"), "/out", False)
    first, second = asked.models["first"], asked.models["second"]
    assert (first.objective, first.concurrency, first.batch) == ("latency", 58, 4)
    # Model Analyzer counts rows, and requests have four.
    assert [one.text for one in first.constraints] == ["p99<=5ms", "rate>=250"]
    assert first.ranges == {"batch_size": [6, 8], "max_queue_delay_us": [0, 200], "num_executors": [1, 2]}
    assert first.flags == {"no_search": True, "shape": ["INPUT:64"], "string_length": 8}
    assert (second.objective, second.concurrency, second.batch) == ("throughput", 8, 9)
    assert [one.text for one in second.constraints] == ["memory<=500MB"]
    (idle,) = (text for text in asked.warnings if "no meaning here" in text)
    for name in (
        "triton_launch_mode",
        "triton_server_flags",
        "profile_models.second.cpu_only",
        "preferred_batch_size",
        "instance_group.kind",
    ):
        assert name in idle
    assert any("concurrency: a tuning is for one load; 58 of 8 is taken" in text for text in asked.warnings)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("profile_models: a, b", ["a", "b"]),
        ("profile_models: [a, b]", ["a", "b"]),
        ("profile_models:\n  - a\n  - b: {cpu_only: true}", ["a", "b"]),
        ("profile_models:\n  a:\n  b:", ["a", "b"]),
    ],
)
def test_models_are_named_in_four_ways(file: Path, text: str, names: list[str]) -> None:
    assert list(read(file, text).models) == names


def test_bounds_of_the_search_and_shorthands_are_read(file: Path) -> None:
    asked = read(
        file,
        "profile_models: [a]\nlatency_budget: 10\nmin_throughput: 50\n"
        "run_config_search_max_model_batch_size: 48\nrun_config_search_min_instance_count: 2\n"
        "run_config_search_max_concurrency: 8",
    )
    one = asked.models["a"]
    assert [told.text for told in one.constraints] == ["p99<=10ms", "rate>=50"]
    assert one.ranges == {"batch_size": [1, 2, 4, 8, 16, 32, 48], "num_executors": [2, 4, 5]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("profile_models: [a]\nspeed: 5", "speed: is no key of Model Analyzer's profile"),
        ("profile_models: []", "names no models"),
        ("concurrency: 4", "names no models"),
        ("profile_models: [a]\nconcurrency: many", "is no list of numbers"),
        ("profile_models: [a]\nconcurrency: 0", "is no whole number from 1 on"),
        ("profile_models: [a]\nbatch_sizes: {start: 2}", "is no range"),
        ("profile_models: [a]\nrequest_rate: 100", "is an open loop"),
        ("profile_models: [a]\nbls_composing_models: b", "is not known here"),
        ("profile_models: [a]\nmodel_type: LLM", "is not tuned"),
        ("profile_models: [a]\nobjectives: [gpu_utilization]", "is not measured"),
        ("profile_models: [a]\nconstraints: {gpu_used_memory: {max: 200}}", "cannot be held"),
        ("profile_models: [a]\nconstraints: {perf_latency_avg: {max: 200}}", "cannot be held"),
        ("profile_models: [a]\nconstraints: {perf_latency_p99: {min: 200}}", "cannot be held"),
        ("profile_models: [a]\nconstraints: {perf_latency_p99: 5}", "has not one bound"),
        ("profile_models: {a: {parameters: {request_rate: 5}}}", "is an open loop"),
        ("profile_models: {a: {speed: 5}}", "profile_models.a.speed: is no key of a model"),
        ("profile_models: {a: {model_config_parameters: {instance_group: 4}}}", "is no list of groups"),
        ("profile_models: [a]\nrun_config_search_min_instance_count: 9", "is below its minimum"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_file_and_the_key(
    file: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError) as error:
        read(file, text)
    assert told in str(error.value)
    assert str(file) in str(error.value)
    assert main(["tune", "--config-file", str(file)]) == 2
    assert told in capsys.readouterr().err


def test_a_file_that_is_not_there_or_names_models_beside_others_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "-f", str(file)]) == 2
    assert "is not there" in capsys.readouterr().err
    file.write_text("profile_models: [a]")
    assert main(["tune", "-f", str(file)]) == 2
    assert "model_repository: is missing" in capsys.readouterr().err
    assert main(["tune", "-f", str(file), "models/a"]) == 2
    assert "leave MODEL_DIR out" in capsys.readouterr().err


def test_models_are_jobs_one_after_another_and_flags_go_before_the_file(file: Path) -> None:
    file.write_text(f"model_repository: /models{WHOLE}")
    parsed = tune_parser().parse_args(["-f", str(file), "--concurrency=7", "--json=out/r.json"])
    (first, second), _ = read_jobs(parsed)
    assert (first.folders, second.folders) == ([Path("/models/first")], [Path("/models/second")])
    assert (first.under_way, second.under_way) == (7, 7)
    assert (first.data.batch, first.data.shapes, first.data.string_length) == (4, {"INPUT": [64]}, 8)
    assert first.only_ranges
    assert (first.output, second.output) == (Path("/out/first"), Path("/out/second"))
    assert (first.json, second.json) == ("out/r-first.json", "out/r-second.json")


def test_models_that_are_profiled_concurrently_are_one_job(file: Path) -> None:
    file.write_text(
        "model_repository: /models\nrun_config_profile_models_concurrently_enable: true\n"
        "profile_models:\n  a: {weighting: 3, constraints: {perf_latency_p99: {max: 5}}}\n  b: {}\n"
    )
    (job,), _ = read_jobs(tune_parser().parse_args(["-f", str(file)]))
    assert job.folders == [Path("/models/a"), Path("/models/b")]
    assert job.weights == {"a": 3, "b": 1}
    assert [(one.text, one.model) for one in job.constraints] == [("a:p99<=5ms", "a")]
    file.write_text(file.read_text() + "  c: {parameters: {concurrency: 5}}\n")
    with pytest.raises(ConfigurationError, match="differ in concurrency"):
        read_jobs(tune_parser().parse_args(["-f", str(file)]))
