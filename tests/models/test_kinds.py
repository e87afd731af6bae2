"""Which kind loads a version: by the backend that its configuration names, or else by its files."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.engine.test_batched import SIGNATURE, Doubling
from tests.kinds import MadeKind
from toutates.engine.batched import BatchedServable
from toutates.engine.servable import Servable
from toutates.engine.supertensor import SuperTensor
from toutates.models.kinds import load_version
from toutates.models.repository import VersionFolder, scan_model
from toutates.models.turns import Arbiter, Limit, Resources
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.system.placement import Placement


def kind(file: str, *backends: str, runs: Sequence[Doubling] = ()) -> MadeKind:
    """A kind whose versions have these backends."""

    def servable(model: str, number: int, folder: Path) -> Servable:
        return BatchedServable(number, SuperTensor(model, SIGNATURE, batch_size=8, capacity=2), runs or [Doubling()])

    return MadeKind(file, servable, *backends)


KINDS = (
    kind("model.npy", "numpy"),
    kind("model.txt", "text", "words"),
    kind("model.onnx", "supertensor", "onnxruntime"),
)

YAML = "backend: {}\nbatch_size: 4\ncapacity: 2\nnum_executors: 1\nallocator: cpu\n"


def version_of(root: Path, file: str, yaml: str = "", pbtxt: str = "") -> VersionFolder:
    folder = root / "m" / "1"
    folder.mkdir(parents=True)
    (folder / file).touch()
    if yaml:
        (folder / "config.yaml").write_text(YAML.format(yaml))
    if pbtxt:
        (root / "m" / "config.pbtxt").write_text(pbtxt)
    found = scan_model(root / "m")
    assert not found.problem
    return found.versions[0]


def load(version: VersionFolder, *, overridden: bool = False, kinds: Sequence[MadeKind] = KINDS) -> str:
    """Load a version; returns the backend that ModelConfig names."""
    served = load_version(kinds, "m", version, overridden=overridden, placement=Placement())
    assert 0 < served.load_ns < 60 * 10**9
    return served.config.backend


CHOSEN: dict[str, tuple[str, str, str, bool, str]] = {
    "files": ("model.txt", "", "", False, "text"),
    "files, with a config.pbtxt that leaves it open": ("model.npy", "", "max_batch_size: 4", False, "numpy"),
    "backend of config.pbtxt": ("model.npy", "", "backend: 'words'", False, "text"),
    "platform of config.pbtxt": ("model.npy", "", "platform: 'onnxruntime_onnx'", False, "supertensor"),
    "config.yaml": ("model.onnx", "numpy", "", False, "numpy"),
    "config.yaml before config.pbtxt": ("model.onnx", "numpy", "backend: 'text'", False, "numpy"),
    "config.pbtxt in its place": ("model.onnx", "numpy", "backend: 'text'", True, "text"),
}


@pytest.mark.parametrize(("file", "yaml", "pbtxt", "overridden", "chosen"), CHOSEN.values(), ids=CHOSEN.keys())
def test_the_kind_is_chosen_by(tmp_path: Path, file: str, yaml: str, pbtxt: str, overridden: bool, chosen: str) -> None:
    assert load(version_of(tmp_path, file, yaml, pbtxt), overridden=overridden) == chosen


UNKNOWN = {
    "misspelt": (
        "",
        "backend: 'onnxruntme'",
        "backend: there is no backend of this name (got 'onnxruntme'); did you mean 'onnxruntime'?",
    ),
    "unknown": (
        "",
        "backend: 'own'",
        "backend: there is no backend of this name (got 'own'); write one of supertensor, onnxruntime, text, words, ",
    ),
    "TensorRT": (
        "",
        "platform: 'tensorrt_plan'",
        "platform: TensorRT plans are not served (got 'tensorrt_plan'); put the ONNX model there",
    ),
    "TensorFlow": (
        "",
        "platform: 'tensorflow_savedmodel'",
        "platform: TensorFlow models are not served (got 'tensorflow_savedmodel'); convert the model",
    ),
    "DALI": (
        "",
        "backend: 'dali'",
        "backend: DALI pipelines are not served (got 'dali'); prepare inputs in the client",
    ),
    "config.yaml": (
        "tensorrt",
        "",
        "backend: must be supertensor or onnxruntime or text or words or numpy (got 'tensorrt'); write",
    ),
}


@pytest.mark.parametrize(("yaml", "pbtxt", "said"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_backend_that_is_not_there_is_refused_by_file_key_and_remedy(
    tmp_path: Path, yaml: str, pbtxt: str, said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(version_of(tmp_path, "model.onnx", yaml, pbtxt))
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "m"))
    assert "\n" not in str(caught.value)


def test_a_kind_of_its_own_makes_a_name_of_triton_a_known_one(tmp_path: Path) -> None:
    version = version_of(tmp_path, "model.py", pbtxt="backend: 'python'")
    assert load(version, kinds=[kind("model.py", "python")]) == "python"


def test_files_of_no_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="holds no kind of model that this server was started with"):
        load(version_of(tmp_path, "other"))


def test_what_was_made_of_a_version_is_closed_where_there_will_never_be_enough_of_a_resource(tmp_path: Path) -> None:
    version = version_of(tmp_path, "model.txt", "text\nrate_limits: [{resources: [{name: r, count: 5}]}]")
    made = [Doubling(), Doubling()]

    kinds = [kind("model.txt", "text", runs=made)]
    arbiter = Arbiter(1, Resources([Limit("r", 2)]))
    with pytest.raises(ModelLoadError, match="is limited to 2"):
        load_version(kinds, "m", version, overridden=False, placement=Placement(), arbiter=arbiter)
    assert [backend.closed for backend in made] == [True, True]


class Record(VersionFolder):
    """A version's record, of which a test sees whether anybody holds it."""


def test_of_a_version_whose_record_is_made_anew_at_each_look_the_last_is_remembered(tmp_path: Path) -> None:
    text = kind("model.txt", "text")
    found = version_of(tmp_path, "model.txt", "text")
    version: VersionFolder = Record(**{field.name: getattr(found, field.name) for field in fields(found)})
    version = replace(version, size=1)
    records = []
    config = version.path / "config.yaml"
    for size in (1, 2, 3):
        config.write_text(YAML.format("text").replace("batch_size: 4", f"batch_size: {size}"))
        version = replace(version)
        records.append(weakref.ref(version))
        for _ in range(2):
            load_version([text], "m", version, overridden=False, placement=Placement(), measured=True)
    assert [one.settings.batch_size for one in text.loaded] == [1, 1, 2, 2, 3, 3]
    assert [one is two for one, two in pairwise(text.loaded)] == [True, False, True, False, True]
    text.loaded.clear()
    assert [record() is version for record in records] == [False, False, True]


@pytest.mark.parametrize("key", ["padding: {inputs: {x: {axis: 1}}}", "ragged: {inputs: {x: [-1, 8]}}"])
def test_keys_of_onnx_models_need_no_name_of_a_backend_and_are_of_these_alone(tmp_path: Path, key: str) -> None:
    own = key.partition(":")[0]
    for file in ("model.onnx", "model.npy"):
        version_of(tmp_path / file, file)
        (tmp_path / file / "m" / "1" / "config.yaml").write_text(key)
    assert load(scan_model(tmp_path / "model.onnx" / "m").versions[0]) == "supertensor"
    with pytest.raises(ConfigurationError, match=f"{own}: is for ONNX models only"):
        load(scan_model(tmp_path / "model.npy" / "m").versions[0])
