"""``toutates serve PATH``: what it takes a path for, what it calls the model, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.triton_repository import add_model, negative
from toutates.command.main import main, parse_options
from toutates.repositories.specification import BucketSpecification, FileSpecification
from toutates.server.options import Options
from toutates.system.errors import ConfigurationError

GRAPH = negative().SerializeToString()


def put(path: Path, content: bytes = GRAPH) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def serve(*words: str | Path) -> Options:
    return parse_options(["serve", *map(str, words)])


def refusal(*words: str | Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        serve(*words)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("resnet50.onnx", "resnet50"),
        ("My Net.v2.onnx", "My Net.v2"),
        ("graph", "graph"),
        ("bert/model.onnx", "bert"),
        ("bert/model_quantized.onnx", "bert"),
        ("bert/onnx/model.onnx", "bert"),
        ("bert/3/model.onnx", "bert"),
        ("models--org--all-MiniLM/snapshots/0f3c/onnx/model.onnx", "all-MiniLM"),
        (".hidden/model.onnx", "model"),
    ],
)
def test_a_file_is_a_model_by_a_name_that_its_path_says(tmp_path: Path, path: str, name: str) -> None:
    file = put(tmp_path / path)
    assert serve(file).model_repositories == (FileSpecification(file, name),)
    assert serve(file, "--name", "mine").model_repositories == (FileSpecification(file, "mine"),)


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    assert serve("net.onnx").model_repositories == (FileSpecification(tmp_path / "net.onnx", "net"),)
    assert serve("./net.onnx", "--grpc-addr", "127.0.0.1:0").grpc_addr.port == 0


def test_a_served_file_is_watched_and_must_load(tmp_path: Path) -> None:
    options = serve(put(tmp_path / "net.onnx"))
    assert (options.model_control_mode, options.repository_poll_s, options.exit_on_error) == ("poll", 2, True)
    assert options.shows_client
    options = serve(tmp_path / "net.onnx", "--model-control-mode", "none", "--exit-on-error", "false")
    assert (options.model_control_mode, options.exit_on_error) == ("none", False)


def test_a_model_that_is_named_is_loaded_in_every_mode(tmp_path: Path) -> None:
    explicit = ("--model-control-mode", "explicit")
    assert serve(put(tmp_path / "net.onnx"), *explicit).load_models is None, "all that there is"
    assert serve("s3://bucket/net.onnx", *explicit).load_models is None
    put(tmp_path / "lone" / "model.onnx")
    assert serve(tmp_path / "lone", *explicit).load_models is None
    assert serve("s3://bucket/models", *explicit).load_models == ()


def test_the_folder_of_one_model_with_versions_is_that_model_alone(tmp_path: Path) -> None:
    add_model(tmp_path, "one", negative())
    add_model(tmp_path, "other", negative())
    options = serve(tmp_path / "one")
    assert (options.model_repositories, options.load_models) == ((tmp_path,), ("one",))
    assert "rename the folder" in refusal(tmp_path / "one", "--name", "x")
    assert "PATH is one model" in refusal(tmp_path / "one", "--load-models", "other")


def test_a_folder_with_a_graph_alone_is_a_model_of_its_name(tmp_path: Path) -> None:
    put(tmp_path / "lone" / "model.onnx")
    options = serve(tmp_path / "lone")
    assert (options.model_repositories, options.model_name) == ((tmp_path / "lone",), "lone")
    assert serve(tmp_path / "lone", "--name", "x").model_name == "x"
    put(tmp_path / "m" / "7" / "model.onnx")
    assert serve(tmp_path / "m" / "7").model_name == "m"


def test_a_folder_with_one_graph_of_any_name_is_that_graph(tmp_path: Path) -> None:
    file = put(tmp_path / "some" / "yolo.onnx")
    assert serve(tmp_path / "some").model_repositories == (FileSpecification(file, "yolo"),)
    put(tmp_path / "some" / "other.onnx")
    assert "holds 2 graphs: other.onnx, yolo.onnx" in refusal(tmp_path / "some")


def test_a_folder_of_the_hub_is_a_model(tmp_path: Path) -> None:
    graph = put(tmp_path / "vit" / "onnx" / "model.onnx")
    put(tmp_path / "vit" / "config.json", b"{}")
    assert serve(tmp_path / "vit").model_repositories == (FileSpecification(graph, "vit"),)
    put(tmp_path / "minilm" / "modules.json", b"[]")
    put(tmp_path / "minilm" / "onnx" / "model.onnx")
    options = serve(tmp_path / "minilm")
    assert (options.model_repositories, options.model_name) == ((tmp_path / "minilm",), "minilm")


def test_a_repository_is_served_as_one(tmp_path: Path) -> None:
    add_model(tmp_path, "one", negative())
    add_model(tmp_path, "other", negative())
    options = serve(tmp_path)
    assert (options.model_repositories, options.load_models) == ((tmp_path,), None)
    assert (options.model_control_mode, options.exit_on_error) == ("none", False), "as by --model-repository"
    assert "PATH is a repository" in refusal(tmp_path, "--name", "x")


def test_a_repository_may_hold_text_models_and_numbers(tmp_path: Path) -> None:
    put(tmp_path / "text" / "minilm" / "modules.json", b"[]")
    assert serve(tmp_path / "text").model_name == ""
    put(tmp_path / "numbers" / "7" / "1" / "model.onnx")
    assert serve(tmp_path / "numbers").load_models is None
    put(tmp_path / "python" / "configured" / "config.pbtxt", b"")
    assert serve(tmp_path / "python").model_repositories == (tmp_path / "python",)


def test_a_file_on_s3_is_a_model() -> None:
    [place] = serve("s3://bucket/some/net.onnx", "--s3-endpoint", "http://127.0.0.1:1").model_repositories
    assert isinstance(place, BucketSpecification)
    assert (place.prefix, place.file, place.model_name, place.url) == (
        "some/",
        "net.onnx",
        "net",
        "s3://bucket/some/net.onnx",
    )
    assert place.endpoint == "http://127.0.0.1:1"
    [place] = serve("s3://bucket/model.onnx").model_repositories
    assert isinstance(place, BucketSpecification)
    assert (place.prefix, place.model_name) == ("", "bucket")
    options = serve("s3://bucket/models")
    assert options.model_repositories == (BucketSpecification("s3", "bucket", "models/"),)
    assert options.model_control_mode == "none"
    assert serve("s3://bucket/net.onnx").model_control_mode == "poll"
    assert serve("s3://bucket/net.onnx").repository_poll_s == 15, "each look costs a request"
    assert "PATH is a repository" in refusal("s3://bucket/models", "--name", "x")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("net.onnx", b"", "is empty"),
        ("net.onnx", b"version https://git-lfs.github.com/spec/v1\noid", "pointer of Git LFS"),
        ("net.pt", b"PK", "is no ONNX model"),
        ("net.mar", b"PK", "toutates import"),
        ("model.safetensors", b"12345678", "toutates import"),
    ],
)
def test_what_is_no_graph_is_refused_with_what_to_do(tmp_path: Path, name: str, content: bytes, text: str) -> None:
    said = refusal(put(tmp_path / name, content))
    assert said.startswith("PATH: ")
    assert text in said


def test_what_is_not_there_is_refused_with_what_is_like_it(tmp_path: Path) -> None:
    put(tmp_path / "resnet.onnx")
    assert f"did you mean '{tmp_path / 'resnet.onnx'}'?" in refusal(tmp_path / "resnt.onnx")
    assert "there is no such file or folder" in refusal(tmp_path / "nowhere" / "x.onnx")
    os.mkfifo(tmp_path / "pipe")
    assert "is neither a file nor a folder" in refusal(tmp_path / "pipe")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert "holds no model" in refusal(tmp_path)
    put(tmp_path / "config.json", b"{}")
    put(tmp_path / "model.safetensors", b"x")
    assert f"toutates import {tmp_path}" in refusal(tmp_path)
    put(tmp_path / "plan" / "model.plan", b"x")
    assert "TensorRT plans are not served" in refusal(tmp_path / "plan")


def test_a_name_that_no_model_can_have_is_refused(tmp_path: Path) -> None:
    assert "is no name of a model" in refusal(put(tmp_path / "net.onnx"), "--name", "a/b")


def test_path_and_repository_are_one_too_many(tmp_path: Path) -> None:
    assert "is the same as PATH" in refusal(put(tmp_path / "net.onnx"), "--model-repository", "models")
    assert "there is one PATH" in refusal(tmp_path / "net.onnx", "second.onnx")


def test_the_variable_of_the_repository_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOUTATES_MODEL_REPOSITORY", "/models")
    file = put(tmp_path / "net.onnx")
    assert serve(file).model_repositories == (FileSpecification(file, "net"),)
    assert parse_options(["serve"]).model_repositories == (Path("/models"),)


def test_the_settings_show_the_defaults_of_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "serve", str(put(tmp_path / "net.onnx"))]) == 0
    assert "default of serve" in capsys.readouterr().out


def test_a_path_without_serve_is_told_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["net.onnx"]) == 2
    assert "'toutates serve net.onnx'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "name", "prefix", "file"),
    [
        ("gs://bucket/models/net.onnx", "net", "models/", "net.onnx"),
        ("gs://bucket/nets/model.onnx", "nets", "nets/", "model.onnx"),
        ("as://account/nets/model.onnx", "nets", "", "model.onnx"),
    ],
)
def test_an_object_of_another_cloud_is_a_model(path: str, name: str, prefix: str, file: str) -> None:
    [place] = serve(path).model_repositories
    assert isinstance(place, BucketSpecification)
    assert (place.model_name, place.prefix, place.file) == (name, prefix, file)
