"""Keys become models, versions and files, and what cannot be a file never becomes a path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repositories.s3_services import S3Service, quiet
from tests.repositories.support import repository
from toutates.models.repository import say_passed_over
from toutates.repositories.s3.keys import S3Object, models_among

VIEW = Path("/cache/models/x/files/m")


def objects(*keys: str) -> list[S3Object]:
    return [S3Object(key, '"etag"', 1) for key in keys]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("m/1/../model.onnx", r"a part of it is '\.\.'"),
        ("m/1/./x", r"a part of it is '\.'"),
        ("m/1//x", "a part of it between slashes is empty"),
        ("m/1/x//", "a part of it between slashes is empty"),
        ("m/1/" + "x" * 256, "more than 255 bytes"),
        ("m/1/" + "x/" * 1500, "more than 2048 bytes"),
        ("m/1/a\0b", "zero byte"),
        ("m/1/a\ufffdb", "not UTF-8"),
    ],
)
def test_a_key_that_cannot_be_a_file_is_a_problem_of_its_version_alone(key: str, problem: str) -> None:
    models, odd = models_among(objects("p/m/1/model.onnx", "p/m/2/model.onnx", "p/" + key), "s3://b/p", "p/")
    assert odd == []
    folder = models["m"].describe(VIEW)
    assert re.search(problem, folder.versions[0].problem)
    assert "s3://b/p/m" in folder.versions[0].problem
    assert "rename or remove" in folder.versions[0].problem
    assert folder.versions[1].problem == ""
    assert models["m"].wanted().keys() == {"2/model.onnx"}


@pytest.mark.parametrize("key", ["m/../1/model.onnx", "m//1/model.onnx", "m/x/../../model.onnx"])
def test_a_key_that_cannot_be_a_file_outside_of_versions_is_a_warning(key: str) -> None:
    models, _ = models_among(objects("m/1/model.onnx", key), "s3://b", "")
    folder = models["m"].describe(VIEW)
    assert "cannot be a file" in folder.warnings[-1]
    assert folder.versions[0].problem == ""
    assert models["m"].wanted().keys() == {"1/model.onnx"}


@pytest.mark.parametrize("key", ["../m/1/model.onnx", "/m/1/model.onnx", "./m/1/model.onnx", "a\ufffd/1/model.onnx"])
def test_a_key_that_belongs_to_no_model_is_said(key: str) -> None:
    models, (odd,) = models_among(objects("m/1/model.onnx", key), "s3://b", "")
    assert list(models) == ["m"]
    assert "passed over" in odd
    assert "s3://b" in odd


def test_a_name_that_is_a_file_and_a_directory_is_a_problem() -> None:
    models, _ = models_among(objects("m/1/model.onnx", "m/1/model.onnx/model.onnx", "m/2", "m/2/x"), "s3://b", "")
    first, second = models["m"].describe(VIEW).versions
    assert "'s3://b/m/1/model.onnx' and 's3://b/m/1/model.onnx/...' are both objects" in first.problem
    assert "'s3://b/m/2' and" in second.problem
    assert not models["m"].wanted()


def test_objects_that_stand_for_directories_are_directories() -> None:
    keys = ("", "m/", "m/1/", "m/1/model.onnx", "n/", "o/1/")
    models, odd = models_among(objects(*keys), "s3://b", "")
    assert odd == []
    assert models["m"].describe(VIEW).versions[0].problem == ""
    assert models["m"].wanted().keys() == {"1/model.onnx"}
    assert "no version directory in 's3://b/n/'" in models["n"].describe(VIEW).problem
    assert "unable to find 's3://b/o/1/model.onnx'" in models["o"].describe(VIEW).versions[0].problem


def test_what_lies_in_place_of_the_graph_is_named() -> None:
    models, _ = models_among(objects("m/1/model.plan", "m/2/model.onnx"), "s3://b", "")
    first, second = models["m"].describe(VIEW).versions
    assert "no such object, but 'model.plan'; TensorRT plans are not served" in first.problem
    assert second.problem == ""


def test_directories_that_are_no_models_are_passed_over() -> None:
    keys = ("m/1/x", ".git/1/model.onnx", "lost+found/a", "__pycache__/a.pyc", "scripts/a.py", "half/config.pbtxt")
    models, odd = models_among(objects(*keys), "s3://b", "")
    assert odd == []
    described = {name: files.describe(VIEW) for name, files in models.items()}
    passed_over = {".git", "__pycache__", "lost+found", "scripts"}
    assert {name for name, folder in described.items() if folder.passed_over} == passed_over
    assert described.keys() - passed_over == {"half", "m"}
    assert say_passed_over(described["scripts"]) == (
        "'s3://b/scripts' is passed over, because it does not look like a model: no version directory in "
        "'s3://b/scripts/', such as 's3://b/scripts/1/', and no config.pbtxt"
    )
    assert not described[".git"].versions


def test_the_folder_of_a_text_model_is_its_only_version() -> None:
    files = ("modules.json", "model.onnx", "tokenizer.json", "config.json", "1_Pooling/config.json")
    models, odd = models_among(objects(*(f"m/{name}" for name in files), "m/.git/x", "n/config.json"), "s3://b", "")
    assert odd == []
    folder = models["m"].describe(VIEW)
    [version] = folder.versions
    assert (version.number, version.path, version.is_lone, version.problem) == (1, VIEW, True, "")
    assert (folder.is_lone, folder.warnings, folder.problem, folder.passed_over) == (True, (), "", False)
    assert models["m"].wanted().keys() == set(files)
    assert models["n"].describe(VIEW).passed_over
    # A version's directory beside them is what is served.
    models, _ = models_among(objects("m/modules.json", "m/2/model.onnx"), "s3://b", "")
    assert [version.number for version in models["m"].describe(VIEW).versions] == [2]
    # What cannot be a file is the version's problem.
    models, _ = models_among(objects("m/modules.json", "m/model.onnx", "m/a//b"), "s3://b", "")
    [version] = models["m"].describe(VIEW).versions
    assert "a part of it between slashes is empty" in version.problem
    assert not models["m"].wanted()


def test_many_odd_keys_are_few_warnings() -> None:
    models, _ = models_among(objects("m/1/model.onnx", *(f"m//{number}" for number in range(1000))), "s3://b", "")
    warnings = models["m"].describe(VIEW).warnings
    assert len(warnings) == 11
    assert warnings[-1] == "and 990 more like these"


def test_no_key_leaves_the_cache(moto_service: S3Service, tmp_path: Path) -> None:
    keys = ["m/1/model.onnx", "../../escape", "m/1/../../../../escape", "m/2/model.onnx", "/etc/passwd", "..//x/1/y"]
    bucket = moto_service.bucket(dict.fromkeys(keys, b"x"))
    with repository(moto_service, bucket, tmp_path / "a" / "b" / "cache") as remote:
        found = {folder.name: folder for folder in remote.scan()}
        assert list(found) == ["m"]
        fetched = remote.fetch(found["m"], quiet)
        assert "is '..'" in fetched.versions[0].problem
        assert fetched.versions[1].model_path.read_bytes() == b"x"
    outside = {path for path in tmp_path.rglob("*") if path.is_file()} - set((tmp_path / "a/b/cache").rglob("*"))
    assert not outside
