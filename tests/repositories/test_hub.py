"""Models of the Hugging Face Hub: which files make the model, how they come, and what goes wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from tests.ports import dead_port
from tests.repositories.answers import Answer, answering
from tests.repositories.clouds import opened
from tests.repositories.hub import Hub, hub
from tests.repositories.s3_services import files_in, nothing_is_left, quiet
from tests.repositories.support import QUICK
from toutates.repositories.cache.model_cache import ModelCache
from toutates.repositories.hub.layout import hub_model
from toutates.repositories.hub.repository import HubRepository
from toutates.repositories.pace import Patience
from toutates.repositories.s3.keys import S3Object
from toutates.repositories.specification import HubSpecification, read_specifications
from toutates.system.errors import ConfigurationError, RepositoryError

LARGE = os.urandom(1_000_000)
TEXT = {
    "modules.json": b"[]",
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b"{1}",
    "onnx/model.onnx": LARGE,
    "onnx/model.onnx_data": b"weights",
    "onnx/model_int8.onnx": b"small",
    "model.safetensors": b"heavy",
    "pytorch_model.bin": b"heavy",
    "openvino/openvino_model.bin": b"heavy",
    ".gitattributes": b"",
}


@pytest.fixture(autouse=True, scope="module")
def client_of_http() -> Iterator[None]:
    yield
    close_session()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", "hf_tellnobody")
    with hub() as here:
        here.token = "hf_tellnobody"
        here.models["acme/net"] = dict(TEXT)
        monkeypatch.setattr(constants, "ENDPOINT", here.endpoint)
        yield here


@contextmanager
def repository(cache: Path, url: str = "hf://acme/net", patience: Patience = QUICK) -> Iterator[HubRepository]:
    [asked] = read_specifications([url], endpoint=None, region=None)
    assert isinstance(asked, HubSpecification)
    one = HubRepository(asked, ModelCache(cache, 2**40), patience)
    try:
        yield one
    finally:
        one.stop()


def layout(*paths: str, graph: str = "") -> dict[str, str] | str:
    """Paths in the model, with those of the Hub; or what is wrong."""
    found = hub_model([S3Object(path, path, 1) for path in paths], "hf://a/b", "b", graph)
    return found if isinstance(found, str) else {inside: one.key for inside, one in found.files.items()}


# --- which files -----------------------------------------------------------------------------------------------------


def test_a_text_model_is_its_folder_with_one_graph() -> None:
    assert layout(*TEXT) == {
        "modules.json": "modules.json",
        "config.json": "config.json",
        "tokenizer.json": "tokenizer.json",
        "1_Pooling/config.json": "1_Pooling/config.json",
        "model.onnx": "onnx/model.onnx",
        "model.onnx_data": "onnx/model.onnx_data",
    }
    chosen = layout(*TEXT, graph="onnx/model_int8.onnx")
    assert isinstance(chosen, dict)
    assert chosen["model.onnx"] == "onnx/model_int8.onnx"
    assert "model.onnx_data" not in chosen


def test_a_table_of_vectors_keeps_its_weights() -> None:
    paths = ("modules.json", "tokenizer.json", "config.json", "model.safetensors")
    assert layout(*paths, "onnx/a.onnx", "onnx/b.onnx") == dict(zip(paths, paths, strict=True))


@pytest.mark.parametrize("graph", ["model.onnx", "onnx/model.onnx", "net-v2.onnx"])
def test_another_model_is_its_graph_as_version_1(graph: str) -> None:
    found = layout(graph, f"{graph}_data", "config.json", "preprocessor_config.json", "model.safetensors")
    weights = f"1/{graph.rpartition('/')[2]}_data"
    assert found == {"1/model.onnx": graph, weights: f"{graph}_data"}


def test_a_directory_of_a_repository_is_taken_as_it_is() -> None:
    paths = ("config.pbtxt", "1/model.onnx", "2/model.onnx", "labels.txt")
    assert layout(*paths, ".gitattributes", "2/.cache/x") == dict(zip(paths, paths, strict=True))


@pytest.mark.parametrize(
    ("paths", "graph", "problem"),
    [
        (("config.json", "model.safetensors"), "", "it holds weights and no graph; name a model with a graph (.onnx)"),
        (("README.md",), "", "it holds no graph; name a model"),
        ((), "", "it holds no graph; name a model"),
        (("a.onnx", "b.onnx"), "", "it holds no graph; name one of its graphs after the model: a.onnx, b.onnx"),
        (("a.onnx",), "c.onnx", "there is no file 'c.onnx'; name one of its graphs after the model: a.onnx"),
    ],
)
def test_what_has_no_graph_is_refused_with_a_remedy(paths: tuple[str, ...], graph: str, problem: str) -> None:
    found = layout(*paths, graph=graph)
    assert isinstance(found, str)
    assert found.startswith(problem)


def test_paths_that_cannot_be_files_are_never_used() -> None:
    for path in ("1/../../etc/passwd", "1//a", "1/\0"):
        found = hub_model([S3Object(one, one, 1) for one in ("1/model.onnx", path)], "hf://a/b", "b")
        assert not isinstance(found, str)
        assert found.wanted() == {} or path.startswith("1/..")
        assert path not in found.files


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "bucket", "revision", "file", "name"),
    [
        ("hf://acme/net", "acme/net", "", "", "net"),
        ("HF://acme/net-v1.5/", "acme/net-v1.5", "", "", "net-v1.5"),
        ("hf://acme/net@v1.0", "acme/net", "v1.0", "", "net"),
        ("hf://acme/net@main/onnx/q.onnx", "acme/net", "main", "onnx/q.onnx", "net"),
    ],
)
def test_a_url_names_model_revision_and_graph(url: str, bucket: str, revision: str, file: str, name: str) -> None:
    [found] = read_specifications([url], endpoint=None, region=None)
    assert found == HubSpecification(bucket, revision, file, name)
    assert str(found) == "hf" + url[2:].rstrip("/")


@pytest.mark.parametrize("url", ["hf://", "hf://net", "hf://acme/../x", "hf://hf_secret@acme/net", "hf://acme/net@a b"])
def test_what_is_no_model_of_the_hub_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="write hf://ORG/MODEL") as caught:
        read_specifications([url], endpoint=None, region=None)
    assert "secret" not in str(caught.value)


def test_other_files_and_other_schemes_are_refused_with_what_to_do() -> None:
    for url, remedy in (
        ("hf://acme/net/config.json", "a file of it that ends in .onnx"),
        ("http://u:secret@h/model.onnx", "have them served by https"),
        ("https://u:secret@h/model.onnx", "into ~/.netrc"),
        ("ftp://u:secret@h/model.onnx", "oci://REGISTRY/REPO:TAG or https://HOST/PATH"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            read_specifications([url], endpoint=None, region=None)
        assert remedy in str(caught.value)
        assert "secret" not in str(caught.value)


# --- what comes ------------------------------------------------------------------------------------------------------


def test_a_model_is_fetched_once_and_the_token_stays_with_the_hub(served: Hub, tmp_path: Path) -> None:
    served.page = 4
    with repository(tmp_path) as remote:
        assert remote.scan(["other"]) == []
        assert served.requests == []
        [folder] = remote.scan()
        assert (folder.name, folder.problem, folder.source) == ("net", "", "hf://acme/net")
        fetched = remote.fetch(folder, quiet)
        assert files_in(fetched.path)["model.onnx"] == LARGE
        assert set(files_in(fetched.path)) == set(layout(*TEXT))
        assert remote.statistics().bytes == sum(
            path.stat().st_size for path in fetched.path.rglob("*") if path.is_file()
        )
        served.requests.clear()
        again = remote.fetch(remote.scan()[0], quiet)
        assert again.path == fetched.path
        assert served.asked("resolve") == []
        served.models["acme/net"]["config.json"] = b'{"a": 1}'
        changed = remote.fetch(remote.scan()[0], quiet)
        assert changed.path != fetched.path
        assert [path for path, *_ in served.asked("resolve")] == ["/acme/net/resolve/main/config.json"]
    with repository(tmp_path / "other") as remote:
        served.requests.clear()
        remote.fetch(remote.scan()[0], quiet)
        stored = [sent for path, sent, _ in served.requests if path.startswith("/acme/net/onnx")]
        assert stored == [""], "the storage is another host"
    assert nothing_is_left(tmp_path)


def test_what_is_cut_off_goes_on_where_it_was_cut(served: Hub, tmp_path: Path) -> None:
    served.cuts = [400_000, 300_000, 5]
    with repository(tmp_path) as remote:
        fetched = remote.fetch(remote.scan()[0], quiet)
        assert files_in(fetched.path)["model.onnx"] == LARGE
    ranges = [asked for path, _, asked in served.requests if path.startswith("/acme/net/onnx")]
    assert ranges[0] == ""
    assert all(asked.startswith("bytes=") for asked in ranges[1:])
    assert len(ranges) == 4


@pytest.mark.parametrize("other", [b"x" * len(LARGE), b"x" * 2_000, LARGE + b"more"])
def test_contents_of_another_digest_or_size_are_not_kept(served: Hub, tmp_path: Path, other: bytes) -> None:
    served.changed["onnx/model.onnx"] = other
    with repository(tmp_path) as remote, pytest.raises(RepositoryError):
        remote.fetch(remote.scan()[0], quiet)
    assert nothing_is_left(tmp_path)


def test_a_hub_that_is_down_leaves_the_models_of_the_cache(
    served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with repository(tmp_path) as remote:
        content = files_in(remote.fetch(remote.scan()[0], quiet).path)
    served.status = 503
    with repository(tmp_path) as remote:
        with pytest.raises(RepositoryError, match=r"hf://acme/net at .* cannot be listed now: .*503"):
            remote.scan()
        recalled = remote.recall(None, "down")
        assert recalled is not None
        [folder] = recalled.folders
        assert files_in(remote.fetch(folder, quiet).path) == content
    with dead_port() as port:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        refused = pytest.raises(RepositoryError, match=r"refused.*check the network")
        with repository(tmp_path / "new") as remote, refused as caught:
            remote.scan()
    assert "tellnobody" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "status", "problem"),
    [
        ("hf://acme/none", 0, "HF_TOKEN"),
        ("hf://acme/net@other", 0, "no such model or revision"),
        ("hf://acme/net", 401, "conditions are accepted on its page"),
        ("hf://acme/net", 403, "status 403"),
        ("hf://acme/net/gone.onnx", 0, "there is no file 'gone.onnx'"),
        ("hf://acme/net", 200, "lists files as no Hub does"),
    ],
)
def test_what_an_operator_has_to_mend_is_said(served: Hub, tmp_path: Path, url: str, status: int, problem: str) -> None:
    served.status = status
    with repository(tmp_path, url) as remote, pytest.raises(ConfigurationError, match=problem) as caught:
        remote.scan()
    assert url in str(caught.value)
    assert "tellnobody" not in str(caught.value)


def test_a_page_of_a_byte_now_and_then_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = replace(QUICK, whole_s=0.1)
    with answering(lambda method, path, headers: Answer(bytes(100_000), pause_s=0.01)) as slow:
        monkeypatch.setattr(constants, "ENDPOINT", slow.url)
        longer = pytest.raises(RepositoryError, match="it takes longer than")
        with repository(tmp_path, patience=brief) as remote, longer:
            remote.scan()


def test_a_download_that_is_slower_than_allowed_is_given_up(served: Hub, tmp_path: Path) -> None:
    with answering(lambda method, path, headers: Answer(LARGE, pause_s=0.01)) as slow:
        served.storage = slow.url
        with opened("hf://acme/net", tmp_path, replace(QUICK, least_rate=10**9, window_s=0.05)) as remote:
            [folder] = remote.scan()
            with pytest.raises(RepositoryError, match=r"'onnx/model.onnx' cannot be read now: .*--download-min-rate"):
                remote.fetch(folder, quiet)


def test_signed_urls_are_in_no_message(served: Hub, tmp_path: Path) -> None:
    with dead_port() as port, repository(tmp_path) as remote:
        served.storage = f"http://127.0.0.1:{port}"
        with pytest.raises(RepositoryError, match=r"'onnx/model.onnx' cannot be.*refused") as caught:
            remote.fetch(remote.scan()[0], quiet)
    assert "secret" not in str(caught.value)


def test_a_repository_that_was_stopped_asks_nothing(served: Hub, tmp_path: Path) -> None:
    with repository(tmp_path) as remote:
        remote.stop()
        with pytest.raises(RepositoryError, match="the server is stopping"):
            remote.scan()
    assert served.requests == []


def test_a_stop_ends_a_download_that_stalls(served: Hub, tmp_path: Path) -> None:
    served.stalls = True
    with repository(tmp_path) as remote, ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(remote.fetch, remote.scan()[0], quiet)
        assert served.stalled.wait(120)
        remote.stop()
        with pytest.raises(RepositoryError, match="the server is stopping"):
            fetching.result()
    assert nothing_is_left(tmp_path)


def test_a_token_of_odd_characters_is_not_shown(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_\x07secret")
    with pytest.raises(ConfigurationError, match="set HF_TOKEN again") as caught, repository(tmp_path):
        pass
    assert "secret" not in str(caught.value)
