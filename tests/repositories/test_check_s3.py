"""``toutates check`` of a repository on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports import dead_port
from tests.repositories.s3_services import S3Service
from tests.triton_repository import negative
from toutates.command.main import main


def test_models_on_s3_are_checked_where_they_are(
    tmp_path: Path, service: S3Service, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = negative().SerializeToString()
    bucket = service.bucket({"models/good/1/model.onnx": sound, "models/bad/1/model.onnx": b"no graph"})
    url = f"s3://{bucket}/models"
    flags = ["--s3-endpoint", service.endpoint, "--model-cache-dir", str(tmp_path)]
    assert main(["check", url, *flags]) == 1
    fact, problem, end = capsys.readouterr().out.splitlines()
    assert fact.startswith("good 1: batched")
    assert problem.startswith(f"error: {url}/bad/1/model.onnx: ")
    assert end == "1 errors, 0 warnings"
    for wrong, said in {
        f"s3://{bucket}/modles": f"error: s3://{bucket}/modles: has no models; did you mean '{url}'?",
        f"{url}/good/1": f"error: {url}/good/1: has no models; it is a version of a model; name '{url}'",
    }.items():
        assert main(["check", wrong, *flags]) == 1
        assert capsys.readouterr().out.splitlines()[0] == said
    for wrong, said in {
        f"{url}/good": f"is the prefix of one model, whose version 1 lies in it, and not of a model repository (got "
        f"'{url}/good'); name '{url}'",
        f"s3://{bucket}": f"has no models, but 'models/' in it has some (got 's3://{bucket}'); name '{url}'",
    }.items():
        assert main(["check", wrong, *flags]) == 2
        assert capsys.readouterr().err == f"toutates: error: REPOSITORY: {said}\n"
    service.put(bucket, "loose/model.onnx", sound)
    assert main(["check", f"s3://{bucket}/loose", *flags]) == 1
    assert f"move it to 's3://{bucket}/loose/NAME/1/model.onnx'" in capsys.readouterr().out


def test_s3_that_cannot_be_reached_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with dead_port() as port:
        flags = ["--s3-endpoint", f"http://127.0.0.1:{port}", "--model-cache-dir", str(tmp_path)]
        assert main(["check", "s3://bucket/models", *flags]) == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().err
