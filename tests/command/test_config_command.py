"""``toutates config``: what it prints gives, put in place, the same configuration again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.triton_repository import CONFIGS, add_model, adder, build_triton_repository, negative, write_config
from toutates.backends.onnx.inspection import ALL_DEVICES
from toutates.backends.onnx.opening import SessionOptions
from toutates.command.main import main
from toutates.models.config.describe import model_config
from toutates.models.config.queues import KEYS
from toutates.models.config.settings import ModelSettings
from toutates.models.kinds import inspect_version
from toutates.models.repository import scan_model
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature
from toutates.server.kinds import kinds_of_models

OWN = """
backend: supertensor
batch_size: 8
capacity: 3
num_executors: 4
allocator: cpu
max_queue_delay_us: 250
preferred_batch_sizes: [2, 4]
preserve_ordering: true
devices: [cpu, auto, cpu, "gpu:1"]
accelerators: {tensorrt: {trt_fp16_enable: 1}, cuda: {gpu_mem_limit: 1000}}
input_wire_shapes: {INPUT: [-1, 2, 2]}
profiling: {file_prefix: /tmp/p, stop_after_batches: 7}
session: {intra_threads: 3, execution_mode: parallel, graph_level: basic, memory_pattern: false}
warmup:
  - {name: "yes", batch_size: 8, inputs: {INPUT: {datatype: FP32, shape: [2, 2], data: random}}}
  - {count: 2, inputs: {INPUT: {datatype: FP32, shape: [2, 2], file: rows}}}
"""


def effective(model_dir: Path) -> tuple[ModelSettings, Signature, ModelConfig]:
    """The newest version's, complete."""
    folder = scan_model(model_dir)
    assert not folder.problem, folder.problem
    version = folder.versions[-1]
    inspected = inspect_version(kinds_of_models(SessionOptions(ALL_DEVICES)), folder.name, version)
    settings, policy = inspected.settings, version.triton.version_policy if version.triton is not None else None
    config = model_config(folder.name, inspected.signature, settings, gpu=None, version_policy=policy, with_own=True)
    return settings, inspected.signature, config


def build(root: Path) -> None:
    build_triton_repository(root)
    (add_model(root, "own", negative()) / "config.yaml").write_text(OWN)
    (root / "own" / "warmup").mkdir()
    (root / "own" / "warmup" / "rows").write_bytes(bytes(16))
    add_model(root, "scalar", negative([]))
    add_model(root, "0", negative(["n", 4, None]))


MODELS = [*CONFIGS, "bare", "own", "scalar", "0"]


@pytest.mark.parametrize("name", MODELS)
def test_the_printed_pbtxt_gives_the_same_configuration(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path)
    before = effective(tmp_path / name)
    assert main(["config", str(tmp_path / name), "--format", "pbtxt"]) == 0
    printed = capsys.readouterr().out
    for path in (tmp_path / name).glob("*/config.yaml"):
        path.unlink()
    write_config(tmp_path, name, printed)
    assert effective(tmp_path / name) == before
    assert main(["config", str(tmp_path / name), "--format", "pbtxt"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("max_batch_size: 8", ""),
        ("max_batch_size: 8 dynamic_batching { }", "dynamic_batching"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_printed_pbtxt_is_no_word_that_nobody_has_said(
    tmp_path: Path, written: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(tmp_path, "m", negative(["n", 4]))
    if written is not None:
        write_config(tmp_path, "m", written)
    for _ in range(2):
        assert main(["config", str(tmp_path / "m"), "--format", "pbtxt"]) == 0
        printed = capsys.readouterr().out
        assert "dynamic_batching {" in printed  # as Triton completes it
        assert ('key: "toutates.dynamic_batching"' in printed) == (not said)
        write_config(tmp_path, "m", printed)
        assert effective(tmp_path / "m")[0].joined_by == said


@pytest.mark.parametrize("name", MODELS)
def test_the_printed_yaml_gives_the_same_configuration(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path)
    before = effective(tmp_path / name)
    assert main(["config", str(tmp_path / name), "--format", "yaml"]) == 0
    printed = capsys.readouterr().out
    newest = scan_model(tmp_path / name).versions[-1].path
    (newest / "config.yaml").write_text(printed)
    assert effective(tmp_path / name) == before
    # All keys are there, as keys or as comments, but for an ensemble's, which are not for a model by itself.
    named = {line.strip("# ").partition(":")[0] for line in printed.splitlines()}
    assert {*ModelSettings.__dataclass_fields__, *KEYS, "backend"} - {"ensemble", "policies", "joined_by"} <= named


def test_without_its_pbtxt_the_printed_yaml_says_the_same_but_for_the_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path)
    before = effective(tmp_path / "named")
    main(["config", str(tmp_path / "named"), "--format", "yaml"])
    printed = capsys.readouterr().out
    assert "# no key for version_policy { latest { num_versions: 1 } }" in printed
    (tmp_path / "named" / "config.pbtxt").unlink()
    (tmp_path / "named" / "1" / "config.yaml").write_text(printed)
    assert effective(tmp_path / "named")[:2] == before[:2]


def test_both_formats_are_printed_and_a_version_can_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        add_model(tmp_path, "m", adder(number), number)
    assert main(["config", str(tmp_path / "m"), "--version", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# m version 1: config.yaml, to lie beside model.onnx\nbackend: supertensor\n")
    first, _, second = text.partition("# m version 1: config.pbtxt")
    assert yaml.safe_load(first)["batch_size"] == 64
    assert "max_batch_size: 64" in second


def test_a_model_that_cannot_be_served_exits_with_1_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(tmp_path, "m", negative())
    write_config(tmp_path, "m", "model_repository_agents { agents { name: 'a' } }")
    assert main(["config", str(tmp_path / "m")]) == 1
    assert "model_repository_agents: a model that needs it cannot be served" in capsys.readouterr().err
    add_model(tmp_path, "n", b"no graph")
    assert main(["config", str(tmp_path / "n")]) == 1
    add_model(tmp_path, "o", negative())
    assert main(["config", str(tmp_path / "o"), "--version", "2"]) == 1
    assert "it has 1" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["/does/not/exist"], [".", "--format", "json"], [".", "--version", "0"]])
def test_a_command_line_that_cannot_be_used_exits_with_2(arguments: list[str]) -> None:
    assert main(["config", *arguments]) == 2


def test_a_directory_that_is_not_there_is_refused_with_the_one_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(tmp_path, "resnet", negative())
    assert main(["config", str(tmp_path / "resnte")]) == 2
    assert capsys.readouterr().err == (
        f"toutates: error: MODEL_DIR: is not a directory (got '{tmp_path}/resnte'); did you mean '{tmp_path}/resnet'?\n"
    )


def test_a_configuration_that_is_not_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path, "m", negative())
    (tmp_path / "m" / "config.yaml").write_text("batch_size: 2\n")
    assert main(["config", str(tmp_path / "m")]) == 0
    assert f"warning: '{tmp_path}/m/config.yaml' is not read" in capsys.readouterr().err
