from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.torchserve_archives import HANDLER, contents, mar, tgz
from toutates.models.config.pbtxt import read_pbtxt
from toutates.models.repository import scan
from toutates.protocol.model_config_pb2 import ModelConfig, ModelInstanceGroup
from toutates.repositories.making import work_directory
from toutates.repositories.torchserve import importing
from toutates.repositories.torchserve.imported import default_of, number_of, urls_of, versions_of
from toutates.repositories.torchserve.importing import AlreadyThere, Wanted, import_archive
from toutates.system.errors import ConfigurationError

RUNTIME = Path(importing.__file__).parent / "runtime"


def config_of(repository: Path, model: str = "lengths") -> ModelConfig:
    config = read_pbtxt(repository / model / "config.pbtxt")
    assert config is not None
    return config


def folder(path: Path) -> Path:
    for name, content in contents().items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(str(content))
    return path


@pytest.mark.parametrize(
    "make",
    [
        lambda path: mar(path / "lengths.mar"),
        lambda path: tgz(path / "lengths.tar.gz"),
        lambda path: tgz(path / "l.tgz", {f"lengths/{name}": text for name, text in contents().items()}),
        lambda path: folder(path / "lengths"),
    ],
    ids=["mar", "tgz", "tgz with a folder", "folder"],
)
def test_an_archive_becomes_a_python_model(make: Callable[[Path], Path], tmp_path: Path) -> None:
    imported = import_archive(make(tmp_path), tmp_path / "models")
    assert (imported.model, imported.version, imported.number) == ("lengths", "1.0", 1)
    version = tmp_path / "models" / "lengths" / "1"
    assert imported.path == version
    assert sorted(path.name for path in version.iterdir()) == ["archive", "model.py", "torchserve.json", "ts"]
    assert (version / "archive" / "handler.py").read_text() == HANDLER
    config = config_of(tmp_path / "models")
    assert (config.backend, config.max_batch_size) == ("python", 1)
    assert [one.name for one in config.input] == ["body", "head"]
    assert [one.name for one in config.output] == ["result", "result_head"]
    assert versions_of(config) == {1: "1.0"}
    [found] = scan(tmp_path / "models")
    assert found.name == "lengths"
    assert [one.name for one in (tmp_path / "models").iterdir()] == ["lengths"]


def test_the_settings_of_workers_become_batching_and_instances(tmp_path: Path) -> None:
    settings = """
minWorkers: 3
maxWorkers: 4
batchSize: 8
maxBatchDelay: 20
deviceType: gpu
deviceIds: [0, 2]
responseTimeout: 10
scale: 5
"""
    archive = mar(tmp_path / "a.mar", contents(files={"model-config.yaml": settings}, configFile="model-config.yaml"))
    imported = import_archive(archive, tmp_path / "models")
    config = config_of(tmp_path / "models")
    assert config.max_batch_size == 8
    assert config.dynamic_batching.max_queue_delay_microseconds == 20_000
    [group] = config.instance_group
    assert (group.count, group.kind, list(group.gpus)) == (2, ModelInstanceGroup.KIND_GPU, [0, 2])
    assert any("maxWorkers" in note for note in imported.notes)
    assert any("responseTimeout" in note for note in imported.notes)


def test_settings_of_a_wrong_type_are_passed_over(tmp_path: Path) -> None:
    archive = mar(tmp_path / "a.mar", contents(files={"model-config.yaml": "batchSize: many\nminWorkers: 0\n"}))
    imported = import_archive(archive, tmp_path / "models")
    assert config_of(tmp_path / "models").max_batch_size == 1
    assert len([note for note in imported.notes if "passed over" in note]) == 2


def test_versions_by_their_names(tmp_path: Path) -> None:
    for number, version in enumerate(("1.0", "2.0", "1.1")):
        import_archive(mar(tmp_path / f"{number}.mar", contents(modelVersion=version)), tmp_path / "models")
    config = config_of(tmp_path / "models")
    versions = versions_of(config)
    assert versions == {1: "1.0", 2: "2.0", 3: "1.1"}
    assert urls_of(config) == {1: "0.mar", 2: "1.mar", 3: "2.mar"}
    assert default_of(config) == 1
    assert [number_of(name, versions) for name in ("1.0", "1.1", "2.0", "3", "4", "x")] == [1, 3, 2, None, 4, None]
    with pytest.raises(AlreadyThere, match="is in the repository already") as there:
        import_archive(tmp_path / "1.mar", tmp_path / "models")
    assert (there.value.model, there.value.version) == ("lengths", "2.0")
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["lengths"]


@pytest.mark.parametrize("name", ["flow.war", "flow.zip"])
def test_a_workflow_is_refused_as_what_it_is(name: str, tmp_path: Path) -> None:
    archive = mar(tmp_path / name, {"WAR-INF/MANIFEST.json": "{}", "workflow.yaml": "models: {}"})
    with pytest.raises(ConfigurationError, match="workflows are not offered"):
        import_archive(archive, tmp_path / "models")


def test_what_a_killed_import_has_left_is_removed_by_a_later_one(tmp_path: Path) -> None:
    old, new = tmp_path / "models" / ".import-old", tmp_path / "models" / ".import-new"
    for path in (old, new):
        path.mkdir(parents=True)
    os.utime(old, (0, 0))
    import_archive(mar(tmp_path / "a.mar"), tmp_path / "models")
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [".import-new", "lengths"]


def test_imports_at_the_same_time_do_not_meet(tmp_path: Path) -> None:
    # One lists what has been left while another removes where it has worked.
    def work(number: int) -> None:
        for _ in range(50):
            with work_directory(tmp_path / "models", tmp_path / f"{number}.mar", "the archive") as made:
                (made / "model").mkdir()

    (tmp_path / "models").mkdir()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(4)]:
            done.result()
    assert list((tmp_path / "models").iterdir()) == []


def test_a_model_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "models" / "lengths" / "1").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="was not made of an archive"):
        import_archive(mar(tmp_path / "a.mar"), tmp_path / "models")
    assert import_archive(tmp_path / "a.mar", tmp_path / "models", Wanted("other")).model == "other"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"MAR-INF/MANIFEST.json": "{"}, "is no JSON"),
    ({"MAR-INF/MANIFEST.json": "[]"}, "is no object"),
    ({"MAR-INF/MANIFEST.json": "{}"}, "Missing Model entry in manifest file."),
    ({"MAR-INF/MANIFEST.json": '{"model": {"modelVersion": "1"}}'}, "Model name is not defined."),
    ({"MAR-INF/MANIFEST.json": '{"model": {"modelName": "m"}}'}, "Model version is not defined."),
    (
        {"MAR-INF/MANIFEST.json": '{"runtime": "java", "model": {"modelName": "m"}}'},
        "Runtime is not defined or invalid.",
    ),
    (contents(modelName="../m"), "is not a letter, then letters"),
    (contents(modelName="m;rm"), "is not a letter, then letters"),
    (contents(modelVersion="../1"), "the model's version"),
    (contents(handler="missing.py"), "Unable to load module missing"),
    (contents(handler="handler.py:not a name"), "is no name"),
    (
        contents(handler="image_classifier"),
        "TorchServe's own 'image_classifier', which is made of torch and torchvision",
    ),
    (contents(handler="text_classifier"), "which is made of torch and torchtext"),
    (contents(serializedFile="../w.pt"), "model.serializedFile names '../w.pt', which is not there"),
    (contents(files={"model-config.yaml": "[1, 2]"}), "has no keys and values"),
    (contents(files={"model-config.yaml": "a: [b"}), "is no YAML"),
]


@pytest.mark.parametrize(("files", "sentence"), REFUSED, ids=[sentence[:30] for _, sentence in REFUSED])
def test_what_cannot_be_imported_says_why(files: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        import_archive(mar(tmp_path / "a.mar", files), tmp_path / "models")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mar"]


BOMB = "a0: &a0 [lol, lol]\n" + "".join(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]\n" for at in range(1, 12))


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]\n"], ids=["grows", "holds itself"])
def test_settings_that_stand_for_gigabytes_are_refused(text: str, tmp_path: Path) -> None:
    archive = mar(tmp_path / "a.mar", contents(files={"model-config.yaml": text}))
    with pytest.raises(ConfigurationError, match="cannot be kept as JSON"):
        import_archive(archive, tmp_path / "models")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mar"]


def test_the_handler_sees_all_of_its_settings(load: Any) -> None:
    settings = "scale: 2\nday: 2024-11-22\nmore: {deep: [1, null]}\n1: one\n"
    context = load(contents(files={"model-config.yaml": settings})).context
    assert context.model_yaml_config == {"scale": 2, "day": "2024-11-22", "more": {"deep": [1, None]}, "1": "one"}


def test_without_a_manifest_the_handler_is_named_by_the_caller(tmp_path: Path) -> None:
    archive = mar(tmp_path / "lengths.mar", {"handler.py": HANDLER})
    with pytest.raises(ConfigurationError, match="there is no handler"):
        import_archive(archive, tmp_path / "models")
    imported = import_archive(archive, tmp_path / "models", Wanted(handler="handler.py"))
    assert (imported.model, imported.version) == ("lengths", "1.0")


def test_requirements_and_torch_are_for_the_operator(tmp_path: Path) -> None:
    files = contents(
        files={"requirements.txt": "pillow\n", "w.pt": b"1"},
        requirementsFile="requirements.txt",
        serializedFile="w.pt",
        handler="base_handler",
    )
    imported = import_archive(mar(tmp_path / "a.mar", files), tmp_path / "models")
    said = "\n".join(imported.notes)
    assert "pip install -r" in said
    assert "EXECUTION_ENV_PATH" in said
    assert "needs torch" in said


def test_what_the_handler_imports_of_torchserve_and_is_not_here_is_said(tmp_path: Path) -> None:
    handler = (
        "from ts.torch_handler.vision_handler import VisionHandler\nfrom ts.utils.util import PredictionException\n"
    )
    imported = import_archive(mar(tmp_path / "a.mar", contents(files={"handler.py": handler})), tmp_path / "models")
    [note] = imported.notes
    assert note.startswith("the handler imports ts.torch_handler.vision_handler, which is not here")


# --- the handler's side ----------------------------------------------------------------------------------------------


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports an archive of a handler, and loads it as its model.py does."""
    before = set(sys.modules)

    def load_handler(files: dict[str, Any]) -> Any:
        imported = import_archive(mar(tmp_path / "a.mar", files), tmp_path / "models")
        monkeypatch.syspath_prepend(str(imported.path))
        from ts.service import Service

        return Service(imported.path)

    yield load_handler
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("ts", "handler", "net"):
            del sys.modules[name]


def head(**fields: str) -> bytes:
    return json.dumps({name.replace("_", "-"): value for name, value in fields.items()}).encode()


FORM = (
    b'--B\r\nContent-Disposition: form-data; name="data"; filename="a.bin"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n12\r\n34\r\n"
    b'--B\r\nContent-Disposition: form-data; name="more"\r\n\r\nx\r\n--B--\r\n'
)


@pytest.mark.parametrize(
    ("body", "content_type", "length", "kind"),
    [
        (b"1234", "", 4, "bytearray"),
        (b"1234", "text/plain", 4, "str"),
        ("äöü".encode("latin-1"), "text/plain; charset=latin-1", 3, "str"),
        (b"[1, 2]", "application/json", 2, "list"),
        (FORM, "multipart/form-data; boundary=B", 6, "bytearray"),
        (b"data=a%20b&more=1", "application/x-www-form-urlencoded", 3, "bytearray"),
    ],
)
def test_a_handler_gets_what_the_content_type_says(
    body: bytes, content_type: str, length: int, kind: str, load: Any
) -> None:
    service = load(contents(files={"model-config.yaml": "scale: 1"}))
    [result] = service.answer([(body, head(content_type=content_type))])
    assert result.status == 200
    assert json.loads(result.body) == {"length": length, "type": kind}
    assert result.fields == {"x-rows": "1"}


@given(
    body=st.binary(max_size=200) | st.builds(lambda parts: b"--B".join(parts), st.lists(st.binary(max_size=40))),
    content_type=st.text(max_size=60)
    | st.sampled_from(
        [
            "multipart/form-data; boundary=B",
            "application/json",
            "text/plain; charset=x",
            "application/x-www-form-urlencoded",
        ]
    ),
)
def test_any_body_is_read_or_refused(body: bytes, content_type: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RUNTIME))
        from ts.forms import read_body
    try:
        fields = read_body(body, content_type)
    except (ValueError, LookupError, RecursionError):
        return
    assert all(isinstance(name, str) for name in fields)


def test_rows_of_a_batch_are_one_list_and_a_broken_one_is_left_out(load: Any) -> None:
    service = load(contents())
    json_head = head(content_type="application/json")
    results = service.answer([(b"12", b""), (b"{", json_head), (b"[1]", json_head)])
    assert [result.status for result in results] == [200, 400, 200]
    assert results[0].fields == results[2].fields == {"x-rows": "2"}
    assert len({result.request_id for result in results}) == 3


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("raise ValueError('no')", 503, b"Prediction failed"),
        ("raise MemoryError", 507, b"Out of resources"),
        ("raise RuntimeError('CUDA out of memory')", 507, b"Out of resources"),
        ("raise PredictionException('bad', 422)", 422, b"bad"),
        ("return {}", 503, b"Invalid model predict output"),
        ("return [1]", 503, b"number of batch response mismatched"),
        ("return [object(), object()]", 503, b"Unsupported model output data type."),
        ("context.set_all_response_status(201); return [b'a', 'b']", 201, b"a"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_handler_returns_or_raises_has_its_status(code: str, status: int, text: bytes, load: Any) -> None:
    handler = f"""
from ts.utils.util import PredictionException

def handle(data, context):
    if data is None:
        return
    {code}
"""
    service = load(contents(files={"handler.py": handler}))
    results = service.answer([(b"1", b""), (b"2", b"")])
    assert (results[0].status, results[0].body) == (status, text)
    assert len(results) == 2


def test_a_named_function_is_the_entry_point(load: Any) -> None:
    handler = "calls = []\ndef go(data, context):\n    calls.append(data)\n    return [len(calls)] if data else None\n"
    service = load(contents("handler.py:go", {"handler.py": handler}))
    [result] = service.answer([(b"1", b"")])
    assert json.loads(result.body) == 2  # it was called once at load


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        ("x = 1\n", "Expected only one class"),
        ("class A:\n    pass\nclass B:\n    pass\n", "Expected only one class"),
        ("class A:\n    pass\n", "Expect handle method in class"),
    ],
)
def test_a_handler_without_an_entry_point_is_refused(handler: str, text: str, load: Any) -> None:
    with pytest.raises(ValueError, match=text):
        load(contents(files={"handler.py": handler}))


def test_the_base_handler_runs_an_onnx_model_without_torch(load: Any) -> None:
    from tests.graphs import DOUBLE

    handler = """
import numpy as np
from ts.torch_handler.base_handler import BaseHandler

class Double(BaseHandler):
    def preprocess(self, data):
        return np.array([row["body"] for row in data], np.float32)
"""
    service = load(contents(files={"handler.py": handler, "m.onnx": DOUBLE}, serializedFile="m.onnx"))
    rows = [(b"[1, 2, 3, 4]", head(content_type="application/json"))] * 2
    assert [json.loads(result.body) for result in service.answer(rows)] == [[2.0, 4.0, 6.0, 8.0]] * 2
    assert "torch" not in sys.modules


def test_torch_is_asked_for_where_it_is_needed(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    with pytest.raises(RuntimeError, match="this model needs torch, which is not installed"):
        load(contents("base_handler", {"w.pt": b"1"}, serializedFile="w.pt"))
