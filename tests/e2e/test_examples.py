"""The examples do what they say, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from examples.voice_activity.speech import speech, write
from tests.e2e.process import ROOT, ServerProcess, environment, running
from tests.minilm import REPOSITORY
from tests.repositories.sentence_transformers.made_up import BERT, write_model

pytestmark = pytest.mark.long

pytest.importorskip("tritonclient.grpc")

EXAMPLES = ROOT / "examples"
CLIENTS = sorted(path.name for path in (EXAMPLES / "clients").glob("*.py"))


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script of the examples, on the interpreter of the clients."""
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def example_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """What ``make serve`` serves."""
    root = tmp_path_factory.mktemp("examples")
    made = run(EXAMPLES / "make_repository.py", str(root))
    assert made.returncode == 0, made.stderr
    with running(root, tmp_path_factory.mktemp("example_server"), ["--http-addr", "127.0.0.1:0"]) as process:
        yield process


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.quick] if name == "simple_sync.py" else []) for name in CLIENTS]
)
def test_an_example_client_gets_right_answers_from_the_example_models(name: str, example_server: ServerProcess) -> None:
    address = example_server.address
    if name.startswith(("http_", "kserve_")):
        address = f"127.0.0.1:{example_server.rest_port}"
    if name.startswith("kserve_") and find_spec("kserve") is None:
        pytest.skip("kserve is not installed")
    done = run(EXAMPLES / "clients" / name, "--url", address)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_example_client_fails_where_there_is_no_server() -> None:
    assert run(EXAMPLES / "clients" / "health_check.py", "--url", "127.0.0.1:1").returncode == 1


def test_magika_served_gives_the_labels_of_magikas_own_api(tmp_path: Path) -> None:
    pytest.importorskip("magika")
    repository, log, files = tmp_path / "repository", tmp_path / "log", tmp_path / "files"
    for folder in (log, files):
        folder.mkdir()
    made = run(EXAMPLES / "magika" / "make_repository.py", str(repository))
    assert made.returncode == 0, made.stderr
    (files / "empty").touch()
    (files / "short").write_text("x")
    (files / "binary").write_bytes(bytes(range(256)) * 64)
    for source in (
        ROOT / "README.md",
        ROOT / "pyproject.toml",
        ROOT / "Makefile",
        *(ROOT / "toutates" / "net").rglob("*.py"),
    ):
        (files / "_".join(source.relative_to(ROOT).parts)).write_bytes(source.read_bytes())
    with running(repository, log) as process:
        done = run(EXAMPLES / "magika" / "classify.py", "--url", process.address, "--compare", "--quiet", str(files))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 different" in done.stdout


def test_a_version_is_rolled_out_and_back_without_a_failed_request() -> None:
    done = run(EXAMPLES / "rollout.py", "--seconds", "0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "requests that failed: []" in done.stdout


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pictures that the network has not seen, as JPEG and PNG files of several sizes, by what they show."""
    pytest.importorskip("PIL")
    from examples.image_classification.make_repository import LABELS, draw

    rng = np.random.default_rng(99)
    folder = tmp_path_factory.mktemp("pictures")
    files = {}
    for at, label in enumerate(LABELS * 3):
        suffix = "png" if at % 3 == 2 else "jpg"
        file = folder / f"{at}-{label}.{suffix}"
        draw(rng, label, 64 + 40 * at).save(file)
        files[file.name] = file
    return files


def test_pictures_are_told_apart_by_an_ensemble(pictures: dict[str, Path], tmp_path: Path) -> None:
    folder = EXAMPLES / "image_classification"
    made = run(folder / "make_repository.py", str(tmp_path / "models"))
    assert made.returncode == 0, made.stderr
    with running(tmp_path / "models", tmp_path, ["--http-addr", "127.0.0.1:0"]) as process:
        address = f"127.0.0.1:{process.rest_port}"
        done = run(folder / "classify.py", "--url", address, *map(str, pictures.values()))
        assert done.returncode == 0, done.stdout + done.stderr
        said = dict(line.split(": ") for line in done.stdout.splitlines())
        assert {name: text.partition(" ")[0] for name, text in said.items()} == {
            name: name.partition("-")[2].partition(".")[0] for name in pictures
        }
        no_image = tmp_path / "no-image.jpg"
        no_image.write_bytes(b"hello")
        refused = run(folder / "classify.py", "--url", address, str(no_image))
        assert refused.returncode == 1
        assert "not an image" in refused.stderr


def test_texts_are_told_apart_by_an_ensemble_with_a_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    folder = EXAMPLES / "text_classification"
    made = run(folder / "make_repository.py", str(tmp_path / "models"))
    assert made.returncode == 0, made.stderr
    texts = {"Stir the soup": "cooking", "they lost by two goals": "sport", "fog and frost at noon": "weather"}
    with running(tmp_path / "models", tmp_path, ["--http-addr", "127.0.0.1:0"]) as process:
        done = run(folder / "classify.py", "--url", f"127.0.0.1:{process.rest_port}", *texts)
        assert done.returncode == 0, done.stdout + done.stderr
        said = dict(line.split(": ") for line in done.stdout.splitlines())
        assert {text: label.partition(" ")[0] for text, label in said.items()} == texts


def test_speech_is_found_in_audio_chunk_by_chunk_with_the_state_in_the_server(tmp_path: Path) -> None:
    folder = EXAMPLES / "voice_activity"
    made = run(folder / "make_repository.py", str(tmp_path / "models"))
    if "cannot be downloaded" in made.stderr:
        pytest.skip("the package silero-vad cannot be downloaded")
    assert made.returncode == 0, made.stderr
    audio = tmp_path / "vowels.wav"
    write(audio, speech("aeio", "oia", pause_s=0.4))
    with running(tmp_path / "models", tmp_path) as process:
        done = run(folder / "detect.py", str(audio), "--url", process.address, "--compare")
    assert done.returncode == 0, done.stdout + done.stderr
    *found, compared = done.stdout.splitlines()
    spoken = [[float(part.split()[0]) for part in line.split("from ")[1].split(" to ")] for line in found]
    # Pauses of 0.4 s around 0.72 and 0.54 s of vowels; a chunk has 0.032 s.
    assert np.allclose(spoken, [[0.4, 1.12], [1.52, 2.06]], atol=0.2), spoken
    assert compared.startswith("77 chunks; the largest difference")


def test_rents_are_estimated_by_a_lightgbm_model(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm", reason="is not installed: the extra lightgbm")
    folder = EXAMPLES / "tabular"
    made = run(folder / "make_repository.py", str(tmp_path / "models"))
    assert made.returncode == 0, made.stderr
    with running(tmp_path / "models", tmp_path, ["--http-addr", "127.0.0.1:0"]) as process:
        flats = ["75,3,1995,2.5,1", "75,3,1995,25,1", "30,1,,12,0"]
        done = run(folder / "estimate.py", "--url", f"127.0.0.1:{process.rest_port}", *flats)
        assert done.returncode == 0, done.stdout + done.stderr
        near, far, small = [float(line.split(": ")[1].split()[0]) for line in done.stdout.splitlines()]
        assert near > far > small > 0


@pytest.mark.skipif(not REPOSITORY.exists(), reason="the model is brought by: python tests/minilm.py")
def test_documentation_is_searched_by_a_sentence_encoder_with_openais_client(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    page = tmp_path / "page.md"
    page.write_text(
        "# Baking\nKnead the dough and let it rest.\n## Ovens\nHeat it to 220 degrees.\n# Sailing\nHoist the jib.\n"
    )
    with running(REPOSITORY, tmp_path, ["--http-addr", "127.0.0.1:0"]) as process:
        url = f"http://127.0.0.1:{process.rest_port}/v1"
        script = EXAMPLES / "search" / "search.py"
        places = ["--url", url, "--model", "minilm", "--cache", str(tmp_path), "--top", "1", "--pages", str(page)]
        done = run(script, "a boat on the sea", *places)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("  page.md: Sailing\n")


def test_a_fetched_sentence_encoder_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_model(tmp_path / "toutates" / "all-MiniLM-L6-v2", BERT)  # as if it had been fetched
    for _ in range(2):
        made = run(EXAMPLES / "search" / "make_repository.py", str(tmp_path / "models"))
        assert made.returncode == 0, made.stderr
    assert (tmp_path / "models" / "all-MiniLM-L6-v2" / "1" / "model.onnx").is_file()
