"""Python models that load and unload other models."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.process import ServerProcess, running
from tests.e2e.python_models import add_model
from tests.graphs import DOUBLE

LOADER = """
def initialize(self, args):
    self.refused = ""
    try:
        pb_utils.load_model("double")
    except pb_utils.TritonModelException as error:
        self.refused = str(error)

def execute(self, requests):
    for request in requests:
        [text] = [element.decode() for element in input_of(request).ravel()]
        said = "done"
        try:
            exec(text, {"pb_utils": pb_utils, "self": self})
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        responses = [answer(request, np.array([[said.encode()]], np.object_))]
    return responses
"""
CONFIG = json.dumps({"backend": "onnxruntime", "max_batch_size": 3})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    (root / "double" / "1").mkdir(parents=True)
    (root / "double" / "1" / "model.onnx").write_bytes(DOUBLE)
    (root / "wrong" / "1").mkdir(parents=True)
    (root / "wrong" / "1" / "model.onnx").write_bytes(b"no model")
    (root.parent / "double.onnx").write_bytes(DOUBLE)
    for isolation in ("process", "thread"):
        add_model(root, isolation, LOADER, isolation=isolation, datatype="STRING", dims="[ 1 ]", more="")
    return root


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    control = ["--model-control-mode", "explicit", "--load-models", "process,thread"]
    flags = ["--http-addr", "127.0.0.1:0", *control]
    with running(root, tmp_path_factory.mktemp("log"), flags=flags) as process:
        yield process


def get(server: ServerProcess, path: str, said: object = None) -> str:
    data = None if said is None else json.dumps(said).encode()
    url = f"http://127.0.0.1:{server.rest_port}/v2/models/{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=120) as answer:
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
    return text


def run(server: ServerProcess, model: str, code: str) -> str:
    """Have a model run some code; returns what has become of it."""
    rows = {"name": "x", "datatype": "BYTES", "shape": [1, 1], "data": [code]}
    answer = json.loads(get(server, f"{model}/infer", {"inputs": [rows]}))
    return str(answer["outputs"][0]["data"][0]) if "outputs" in answer else str(answer)


def rows_of(server: ServerProcess) -> int:
    """The ``max_batch_size`` of the model that is loaded; -1 if it is not."""
    config = json.loads(get(server, "double/config"))
    return int(config.get("max_batch_size", -1))


@pytest.mark.parametrize("model", ["process", "thread"])
def test_models_are_loaded_and_unloaded_by_a_model(server: ServerProcess, model: str, root: Path) -> None:
    ready = "assert {}pb_utils.is_model_ready('double')"
    assert run(server, model, "pb_utils.load_model('double')") == "done"
    assert run(server, model, ready.format("")) == "done"
    assert run(server, model, f"pb_utils.load_model(model_name='double', config={CONFIG!r})") == "done"
    assert rows_of(server) == 3
    files = f"files={{'file:1/model.onnx': open({str(root.parent / 'double.onnx')!r}, 'rb').read()}}"
    config = CONFIG.replace("3", "5")
    assert run(server, model, f"pb_utils.load_model('double', {config!r}, {files})") == "done"
    assert rows_of(server) == 5
    assert run(server, model, "pb_utils.unload_model('double', unload_dependents=True)") == "done"
    assert rows_of(server) == -1


@pytest.mark.parametrize("model", ["process", "thread"])
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("pb_utils.load_model('absent')", "Failed to load model: failed to load 'absent'"),
        ("pb_utils.load_model('wrong')", "Failed to load model: load failed for model 'wrong'"),
        ("pb_utils.load_model('double', files={'file:1/model.onnx': b'x'})", "override files need the parameter"),
        ("pb_utils.load_model('double', '{')", "Failed to load model: "),
        (f"pb_utils.load_model('double', {CONFIG!r}, {{'1/model.onnx': b'x'}})", "unrecognized load parameter"),
        (
            "pb_utils.load_model('double', files=[1])",
            "failed to load model 'double', files should be a dictionary of file paths and file contents",
        ),
        ("pb_utils.load_model('')", "Model name cannot be empty"),
        ("pb_utils.unload_model('')", "Failed to unload model: Model name cannot be empty"),
        (
            "raise pb_utils.TritonModelException(self.refused)",
            "Failed to load model: BLS is only supported during the 'execute' function.",
        ),
    ],
)
def test_what_cannot_be_loaded_raises(server: ServerProcess, model: str, code: str, text: str) -> None:
    said = run(server, model, code)
    assert said.startswith("TritonModelException: "), said
    assert text in said


@pytest.mark.parametrize("model", ["process", "thread"])
def test_a_model_may_load_itself_anew_and_unload_itself(server: ServerProcess, model: str) -> None:
    config = json.dumps(json.loads(get(server, f"{model}/config")))
    assert run(server, model, f"pb_utils.load_model({model!r}, {config!r})") == "done"
    assert run(server, model, f"pb_utils.unload_model({model!r})") == "done"


def test_without_explicit_control_no_model_loads_another(root: Path, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "models").mkdir()
    for name in ("double", "thread"):
        (tmp_path / "models" / name).symlink_to(root / name)
    with running(tmp_path / "models", tmp_path / "log", flags=["--http-addr", "127.0.0.1:0"]) as process:
        for what in ("load", "unload"):
            assert run(process, "thread", f"pb_utils.{what}_model('double')") == (
                f"TritonModelException: Failed to {what} model: "
                "explicit model load / unload is not allowed if polling is enabled"
            )
