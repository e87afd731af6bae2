"""Files that are almost right: in the place of a graph, or named like a configuration; versions being filled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e import models
from tests.e2e.http import Answer, get, peer_of, post
from tests.e2e.process import run, running
from tests.text_models import DIM, make_folder, save_weights
from tests.waiting import wait_until

pytestmark = pytest.mark.long

MODULES: list[tuple[str, str, dict[str, Any]]] = [
    ("1_Pooling", "sentence_transformers.models.Pooling", {"pooling_mode_mean_tokens": True}),
    ("2_Dense", "sentence_transformers.models.Dense", {"in_features": DIM, "out_features": 2, "bias": False}),
]
INSTEAD = {
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "is a pointer of Git LFS"),
    "page": (b"\n<!DOCTYPE html><html><body>log in</body></html>", "is an HTML page"),
    "error": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "is XML"),
    "zipped": (b"\x1f\x8b\x08\x00" + b"\0" * 20, "is compressed by gzip"),
}


def test_what_lies_in_the_place_of_a_graph_is_called_what_it_is(tmp_path: Path) -> None:
    for name, (content, _) in INSTEAD.items():
        models.add_model(tmp_path, name, content)
    checked = run("check", str(tmp_path))
    assert checked.returncode == 1
    for _, said in INSTEAD.values():
        assert said in checked.stdout


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("xgboost.json", "page"),
        ("xgboost.ubj", "lfs"),
        ("model.txt", "lfs"),
        ("model.txt", "zipped"),
        ("model.xml", "error"),
        ("model.xml", "lfs"),
        ("model.skops", "page"),
        ("model.pt", "lfs"),
        ("model.py", "page"),
    ],
)
def test_so_is_what_lies_in_the_place_of_another_kind_of_model(tmp_path: Path, name: str, instead: str) -> None:
    content, said = INSTEAD[instead]
    path = tmp_path / "m" / "1" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    if name == "model.py":
        (tmp_path / "m" / "config.pbtxt").write_text('backend: "python"\n')
    checked = run("check", str(tmp_path))
    assert checked.returncode == 1
    assert f"1/{name}' {said}" in checked.stdout


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "2_Dense/model.safetensors"])
@pytest.mark.parametrize("instead", ["lfs", "page"])
def test_so_is_what_lies_in_the_place_of_a_file_of_a_text_model(tmp_path: Path, name: str, instead: str) -> None:
    content, said = INSTEAD[instead]
    repository, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    folder = repository / "m" / "1"
    make_folder(folder, modules=MODULES)
    save_weights(folder / "2_Dense", linear_weight=np.zeros((2, DIM), np.float32))
    (folder / name).write_bytes(content)
    with running(repository, log, ("--http-addr", "127.0.0.1:0")) as process, peer_of(process.rest_port) as peer:
        [entry] = peer.ask(post("/v2/repository/index", "{}")).document
    assert entry["state"] == "UNAVAILABLE"
    assert said in entry["reason"]
    assert name in entry["reason"]


@pytest.mark.quick
def test_names_like_those_of_configurations_are_named(tmp_path: Path) -> None:
    models.add_model(tmp_path, "m", models.negating_model(1))
    alike = ["config.pbtxt.txt", "Config.pbtxt", "config.prototxt", "1/config.yaml.txt", "1/Config.yaml"]
    kept = ["config.pbtxt.bak", "config.pbtxt~", "README.md", "labels.txt"]
    for name in (*alike, *kept):
        (tmp_path / "m" / name).write_text("max_batch_size: 3\n")
    checked = run("check", str(tmp_path))
    for name in alike:
        assert f"{name}' is not read" in checked.stdout
    for name in kept:
        assert f"{name}' is not read" not in checked.stdout


def test_a_version_that_was_never_served_leaves_the_server_ready(tmp_path: Path) -> None:
    repository, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    models.add_model(repository, "m", models.negating_model(1))
    flags = ("--http-addr", "127.0.0.1:0", "--model-control-mode", "poll", "--repository-poll-secs", "1")
    with running(repository, log, flags) as process, peer_of(process.rest_port) as peer:
        (repository / "m" / "2").mkdir()

        def index() -> list[dict[str, str]]:
            answer: list[dict[str, str]] = peer.ask(post("/v2/repository/index", "{}")).document
            return answer

        wait_until(lambda: [entry["state"] for entry in index()] == ["READY", "UNAVAILABLE"])
        assert peer.ask(get("/v2/health/ready")).status == 200


def test_a_model_in_two_repositories_leaves_the_others_served(tmp_path: Path) -> None:
    first, second, log = tmp_path / "first", tmp_path / "second", tmp_path / "log"
    log.mkdir()
    for root, name in ((first, "double"), (second, "double"), (first, "a"), (second, "b")):
        models.add_model(root, name, models.negating_model(1))
    flags = ("--http-addr", "127.0.0.1:0", "--model-repository", str(second))
    with running(first, log, flags) as process, peer_of(process.rest_port) as peer:
        index = {entry["name"]: entry for entry in peer.ask(post("/v2/repository/index", "{}")).document}
        assert index["a"]["state"] == index["b"]["state"] == "READY"
        assert index["double"]["state"] == "UNAVAILABLE"
        assert "it is in two repositories" in index["double"]["reason"]
        assert f"'{second / 'double'}'" in process.log


def test_a_model_in_two_repositories_ends_no_start_on_demand(tmp_path: Path) -> None:
    first, second, log = tmp_path / "first", tmp_path / "second", tmp_path / "log"
    log.mkdir()
    for root, name in ((first, "double"), (second, "double"), (first, "a"), (second, "b")):
        models.add_model(root, name, models.negating_model(1))
    flags = ("--http-addr", "127.0.0.1:0", "--model-repository", str(second))
    on_demand = ("--model-control-mode", "on-demand", "--repository-poll-secs", "0.2")
    with running(first, log, (*flags, *on_demand)) as process, peer_of(process.rest_port) as peer:
        for name in ("a", "b"):
            assert peer.ask(get(f"/v2/models/{name}/config")).status == 200
        refused = peer.ask(get("/v2/models/double/config"))
        assert refused.status >= 400
        assert "it is in two repositories" in refused.document["error"]
        assert "model 'double' cannot be loaded: it is in two repositories" in process.log
        shutil.rmtree(second / "double")
        wait_until(lambda: peer.ask(get("/v2/models/double/config")).status == 200)
    models.add_model(second, "double", models.negating_model(1))
    grpc = ("--model-repository", str(first), "--grpc-addr", "127.0.0.1:0")
    ended = run(*grpc, *flags, *on_demand, "--exit-on-error", "true")
    assert ended.returncode == 2
    assert "model 'double' is in two repositories" in ended.stderr


@pytest.mark.parametrize("mode", ["none", "explicit", "on-demand"])
def test_a_repository_that_is_missing_ends_the_start_also_where_others_are_there(tmp_path: Path, mode: str) -> None:
    models.add_model(tmp_path / "first", "a", models.negating_model(1))
    flags = ("--model-repository", str(tmp_path / "missing"), "--wait-for-repository", "0.1")
    others = ("--model-repository", str(tmp_path / "first"), "--grpc-addr", "127.0.0.1:0", "--model-control-mode", mode)
    ended = run(*others, *flags)
    assert ended.returncode == 2
    assert "there is no such directory" in ended.stderr
    assert str(tmp_path / "missing") in ended.stderr


def test_a_repository_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    first, later, log = tmp_path / "first", tmp_path / "volumes" / "later", tmp_path / "log"
    log.mkdir()
    models.add_model(first, "a", models.negating_model(1))

    def mount() -> None:
        wait_until(lambda: "is not there yet: waiting for it, 100 s at most" in logged())
        models.add_model(tmp_path / "made", "b", models.negating_model(1))
        later.parent.mkdir()
        (tmp_path / "made").rename(later)

    def logged() -> str:
        return "".join(path.read_text() for path in log.iterdir())

    flags = ("--http-addr", "127.0.0.1:0", "--model-repository", str(later), "--wait-for-repository", "100")
    with ThreadPoolExecutor(1) as pool:
        mounted = pool.submit(mount)
        with running(first, log, flags) as process, peer_of(process.rest_port) as peer:
            mounted.result()
            index = {entry["name"]: entry["state"] for entry in peer.ask(post("/v2/repository/index", "{}")).document}
    assert index == {"a": "READY", "b": "READY"}


@pytest.mark.parametrize("text", ["[]", "", '""', "3", "null"])
def test_the_configuration_of_a_load_is_an_object(tmp_path: Path, text: str) -> None:
    with loads(tmp_path) as load:
        answer = load(text)
    assert answer.status == 400
    assert "load parameter 'config' is not a ModelConfig in JSON" in answer.document["error"]


@pytest.mark.quick
def test_an_instance_group_may_be_one_object(tmp_path: Path) -> None:
    with loads(tmp_path) as load:
        assert load(json.dumps({"instance_group": {"count": 2, "kind": "KIND_CPU"}})).status == 200
        [group] = load(None).document["instance_group"]
    assert (group["count"], group["kind"]) == (2, "KIND_CPU")


@contextmanager
def loads(tmp_path: Path) -> Iterator[Callable[[str | None], Answer]]:
    """A server, and what loads a model of it with a configuration, or returns the one that it has for None."""
    repository, log = tmp_path / "models", tmp_path / "log"
    log.mkdir()
    models.add_model(repository, "m", models.negating_model(1))
    flags = ("--http-addr", "127.0.0.1:0", "--model-control-mode", "explicit")
    with running(repository, log, flags) as process, peer_of(process.rest_port) as peer:

        def ask(text: str | None) -> Answer:
            if text is None:
                return peer.ask(get("/v2/models/m/config"))
            return peer.ask(post("/v2/repository/models/m/load", json.dumps({"parameters": {"config": text}})))

        yield ask
