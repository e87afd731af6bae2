"""``toutates tune`` with real servers: what it finds and writes, what it leaves alone, and what it refuses."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from examples.make_repository import mlp
from tests.e2e.process import ROOT, environment, running
from tests.waiting import PATIENCE_S
from toutates.command.main import main
from toutates.command.tune import running as running_tune
from toutates.system.errors import ConfigurationError
from toutates.tune import tuning
from toutates.tune.space import Space
from toutates.tune.tuning import Tuning

#: Runs of one row each, which is far from the best.
SINGLE_ROWS = """\
backend: supertensor
batch_size: 1
capacity: 256
num_executors: 1
allocator: cpu
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The MLP, configured badly."""
    folder = tmp_path / "models" / "mlp"
    (folder / "1").mkdir(parents=True)
    onnx.save(mlp().model, folder / "1" / "model.onnx")
    (folder / "1" / "config.yaml").write_text(SINGLE_ROWS)
    return folder


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """How the comparison ends does not matter, or what is compared differs by far."""
    monkeypatch.setattr(tuning, "MOST_BLOCKS", 3)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
@pytest.mark.timeout(600)  # some seconds each on an idle machine
@pytest.mark.usefixtures("few_blocks")
def test_tuned_configuration_of_the_mlp_loads_and_is_not_worse(model: Path, tmp_path: Path) -> None:
    before = files_of(model)
    output, told, page = tmp_path / "tuned", tmp_path / "t.json", tmp_path / "t.html"
    flags = ["--points=6", "--seconds-per-point=0.3", f"--output={output}", f"--json={told}", f"--html={page}"]
    assert main(["tune", str(model), *flags]) == 0
    assert files_of(model) == before
    found = json.loads(told.read_text())
    assert len(found["trials"]) == 6
    assert [one["changes"] for one in found["trials"][:2]] == [{}, {"mlp": {"batch_size": 64}}]
    assert all(one["requests_per_second"] > 0 and not one["fault"] for one in found["trials"])
    assert page.read_text().count("<svg") == 2
    if found["ratio"] is not None and found["chosen"]:
        assert found["ratio"]["low"] > 1
    assert output.exists() is found["chosen"]
    if not found["chosen"]:  # the machine was too busy to tell
        return
    written = yaml.safe_load((output / "config.yaml").read_text())
    changes = {name: value for name, value in found["best"]["changes"]["mlp"].items() if "." not in name}
    assert {name: written[name] for name in changes} == changes
    # A server takes both files as they are.
    (model / "1" / "config.yaml").write_bytes((output / "config.yaml").read_bytes())
    with running(model.parent, tmp_path, ["--load-models", "mlp"]) as server:
        assert "loaded 1 of 1" in server.log
    (model / "1" / "config.yaml").unlink()
    (model / "config.pbtxt").write_bytes((output / "config.pbtxt").read_bytes())
    with running(model.parent, tmp_path, ["--load-models", "mlp"]) as server:
        assert "loaded 1 of 1" in server.log


@pytest.mark.long
@pytest.mark.timeout(600)  # some seconds each on an idle machine
@pytest.mark.usefixtures("few_blocks")
def test_a_better_configuration_is_written_beside_the_model_and_loads(model: Path, tmp_path: Path) -> None:
    before, told = files_of(model), tmp_path / "t.json"
    flags = ["--write", "--points=3", "--seconds-per-point=0.5", f"--json={told}", "--accuracy=cosine>=0.5"]
    assert main(["tune", str(model), *flags]) == 0
    found = json.loads(told.read_text())
    assert found["copies"]["mlp"].keys() == {"model.int8.onnx", "model.int8-static.onnx", "model.fp16.onnx"}
    after = files_of(model)
    if not found["chosen"]:  # the machine was too busy to tell
        assert after == before
        return
    assert found["ratio"]["low"] > 1
    assert after.pop("1/config.yaml.before") == before["1/config.yaml"]
    written = yaml.safe_load(after.pop("1/config.yaml"))
    assert written["batch_size"] > 1
    if written["model_filename"] != "model.onnx":
        after.pop(f"1/{written['model_filename']}")
    assert after == {"1/model.onnx": before["1/model.onnx"]}
    with running(model.parent, tmp_path, ["--load-models", "mlp"]) as server:
        assert "loaded 1 of 1" in server.log
    # The next time the file before would be overwritten: that is told before anything is measured.
    assert main(["tune", str(model), "--write"]) == 2


@pytest.mark.long
@pytest.mark.timeout(600)  # some seconds each on an idle machine
def test_a_model_that_changes_meanwhile_is_left_alone(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from toutates.command.tune import running as command

    def changing(bench: object, space: Space, tuning: Tuning, tell: object) -> None:
        (model / "1" / "config.yaml").write_text(SINGLE_ROWS + "# another one's\n")
        tuning.chosen = {"mlp": {**space.base["mlp"], "batch_size": 64}}

    monkeypatch.setattr(command, "tune", changing)
    assert main(["tune", str(model), "--write"]) == 1
    assert "1/config.yaml' was changed meanwhile; nothing is written" in capsys.readouterr().err
    assert files_of(model)["1/config.yaml"].endswith(b"another one's\n")
    assert files_of(model).keys() == {"1/config.yaml", "1/model.onnx"}


@pytest.mark.long
@pytest.mark.timeout(600)  # some seconds each on an idle machine
@pytest.mark.usefixtures("few_blocks")
def test_several_models_are_tuned_together_with_a_bound_for_one_of_them(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, model.with_name("other"))
    told, output = tmp_path / "t.json", tmp_path / "out"
    flags = ["--points=4", "--seconds-per-point=0.3", f"--json={told}", f"--output={output}"]
    flags += ["--constraint=other:p99<=10s", "--weight=mlp=3"]
    assert main(["tune", str(model.parent), *flags]) == 0
    found = json.loads(told.read_text())
    assert (found["models"], found["asked"]) == (["mlp", "other"], ["mlp", "other"])
    first = found["trials"][0]
    rates = [first[f"{name}:requests_per_second"] for name in ("mlp", "other")]
    assert first["requests_per_second"] > 0
    assert min(rates) > 0
    assert found["trials"][1]["changes"] == {"mlp": {"batch_size": 64}, "other": {"batch_size": 64}}
    if found["chosen"]:
        for name in found["best"]["changes"]:
            assert {path.name for path in (output / name).iterdir()} == {"config.yaml", "config.pbtxt"}


@pytest.mark.long
@pytest.mark.timeout(600)  # some seconds each on an idle machine
@pytest.mark.usefixtures("few_blocks")
def test_a_model_with_padding_is_asked_with_rows_of_different_length(tmp_path: Path) -> None:
    table = np.random.default_rng(1).standard_normal((100, 32)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["vectors"])],
        "padded",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "length"])],
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["n", "length", 32])],
        [numpy_helper.from_array(table, "table")],
    )
    version = tmp_path / "models" / "padded" / "1"
    version.mkdir(parents=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, version / "model.onnx")
    padding = "padding: {inputs: {ids: {axis: 1, value: 0}}, outputs: {vectors: 1}, buckets: [64]}\n"
    (version / "config.yaml").write_text(SINGLE_ROWS.replace("batch_size: 1", "batch_size: 16") + padding)
    told = tmp_path / "t.json"
    flags = [f"--json={told}", "--lengths=2:64", "--seconds-per-point=0.2", "--points=12", "--concurrency=16"]
    assert main(["tune", str(version.parent), *flags, f"--output={tmp_path / 'out'}"]) == 0
    found = json.loads(told.read_text())
    assert any("differ in shape" in note for note in found["notes"])
    tried = {name for one in found["trials"] for name in one["changes"].get("padded", {})}
    assert {"padding.max_batch_tokens", "padding.buckets"} <= tried
    assert not any(one["fault"] for one in found["trials"])


@pytest.mark.long
@pytest.mark.timeout(600)  # some seconds each on an idle machine
@pytest.mark.usefixtures("few_blocks")
def test_members_of_an_ensemble_are_tuned_by_requests_to_it(tmp_path: Path) -> None:
    repository = tmp_path / "images"
    subprocess.run(
        [sys.executable, str(ROOT / "examples/image_classification/make_repository.py"), str(repository)],
        check=True,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    picture = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 30, 30)).save(picture, "PNG")
    data = {"data": [{"IMAGE": {"content": {"b64": base64.b64encode(picture.getvalue()).decode()}, "shape": [1]}}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    told = tmp_path / "t.json"
    flags = [f"--data={tmp_path / 'data.json'}", "--points=3", "--seconds-per-point=0.3", f"--json={told}"]
    assert main(["tune", str(repository), *flags, f"--output={tmp_path / 'out'}", "--concurrency=8"]) == 0
    found = json.loads(told.read_text())
    assert (sorted(found["models"]), found["asked"]) == (["decode", "label", "network"], ["classify"])
    assert len(found["trials"]) == 3
    assert all(one["requests_per_second"] > 0 and not one["fault"] for one in found["trials"])
    sizes = [one["changes"].get("network", {}).get("batch_size", 16) for one in found["trials"]]
    assert min(sizes) >= 16  # the ensemble's, or it would not be ready


@pytest.mark.long
@pytest.mark.timeout(600)  # some seconds each on an idle machine
@pytest.mark.usefixtures("few_blocks")
def test_impossible_constraints_are_told_with_the_best_that_was_reached(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--points=2", "--seconds-per-point=0.2", "--constraint=p99<=1us", "--constraint=memory<=1GB"]
    assert main(["tune", str(model), *flags]) == 1
    told = capsys.readouterr().out
    assert "IMPOSSIBLE p99<=1us: the best that was reached is" in told
    assert "above the bound" in told
    assert "IMPOSSIBLE memory" not in told
    assert not Path("mlp-tuned").exists()


@pytest.mark.long
@pytest.mark.timeout(600)  # some seconds each on an idle machine
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_prints_what_there_is_and_leaves_nothing(
    model: Path, tmp_path: Path, sign: signal.Signals
) -> None:
    before = files_of(model)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    # Interrupts may be ignored by those who run the tests.
    code = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "runpy.run_module('toutates', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", code, "tune", str(model), "--seconds-per-point=0.3"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(PATIENCE_S, process.kill)
        watchdog.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "as it is" in line:
                    break
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.send_signal(sign)
            out, _ = process.communicate()
        finally:
            watchdog.cancel()
            process.kill()
    assert process.returncode == 1
    assert "STOPPED before its time; nothing is written" in out
    assert "as it is" in out
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "mlp-tuned").exists()
    assert files_of(model) == before


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--objective=speed"], "write throughput or latency"),
        (["--constraint=p99=5ms"], "such as p99<=5ms"),
        (["--constraint=p98<=5ms"], "figures are p50"),
        (["--shape=INPUT"], "write INPUT:1,64"),
        (["--output={models}/tuned"], "lies in the model repository"),
        (["--output={models}/mlp/1"], "lies in the model repository"),
        (["--output={other}"], "already has a config.yaml"),
        (["--output={other}/config.yaml"], "is no folder"),
        (["--output={other}/config.yaml/deeper"], "is no folder"),
        (["--output=x", "--write"], "leave one out"),
        (["--json=/nonexistent/file"], "--json: cannot be written"),
        (["--html={other}"], "--html: cannot be written"),
        (["--data=/nonexistent.json"], "--data: cannot be read: No such file"),
        (["--seconds-per-point=0"], "--seconds-per-point: must be above 0"),
        (["--points=0"], "--points"),
        (["--accuracy=99%"], "such as cosine>=0.999"),
        (["--lengths=9"], "such as 8:128"),
        (["--weight=mlp=0"], "write MODEL=2"),
        (["--weight=else=2"], "is no model that is asked"),
        (["--constraint=else:p99<=5ms"], "name mlp before the colon"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) else "",
)
def test_bad_flags_are_refused_before_anything_is_measured(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("mine")
    filled = [flag.format(models=model.parent, other=tmp_path / "other") for flag in flags]
    assert main(["tune", str(model), *filled]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--write", "--output={folder}"])
def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    folder = tmp_path / "locked" if "folder" in flag else model / "1"
    folder.mkdir(exist_ok=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and access(path, mode))
    assert main(["tune", str(model), flag.format(folder=folder / "new")]) == 2
    assert f"{flag.partition('=')[0]}: cannot be written" in capsys.readouterr().err


def test_what_was_measured_is_told_though_files_cannot_be_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*arguments: Any) -> str:
        arguments[-1].chosen = {}
        return ""

    def full(_: object) -> list[Path]:
        raise ConfigurationError("cannot be written: No space left on device", key="--output")

    monkeypatch.setattr(running_tune, "_tune", measured)
    monkeypatch.setattr(running_tune, "write_files", full)
    told = tmp_path / "t.json"
    assert main(["tune", str(model), f"--output={tmp_path / 'tuned'}", f"--json={told}"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert json.loads(told.read_text())["models"] == ["mlp"]


def test_what_is_no_model_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(tmp_path / "nothing")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert main(["tune", str(model), "--version=7"]) == 1
    assert "no such version" in capsys.readouterr().err
    (model / "1" / "model.onnx").write_bytes(b"no graph")
    assert main(["tune", str(model)]) == 1
    assert "model.onnx" in capsys.readouterr().err
    model.with_name("nothing").mkdir()
    assert main(["tune", str(model.with_name("nothing"))]) == 2
    assert "has neither versions nor models" in capsys.readouterr().err
    model.with_name("nothing").rmdir()
    (model / "1" / "config.yaml").write_text("backend: supertensor\nbatch_size: none\n")
    assert main(["tune", str(model)]) == 1
    assert "batch_size" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["models"]
