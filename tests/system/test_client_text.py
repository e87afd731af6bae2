"""What clients are told has no paths of the server."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from toutates.system.client_text import without_paths

FOLDER = "/srv/my models/resnet"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("unable to find '/srv/my models/resnet/1/model.onnx': None", "unable to find '1/model.onnx': None"),
        ("Load model from /srv/my models/resnet/1/model.onnx failed:x", "Load model from 1/model.onnx failed:x"),
        ("/srv/my models/resnet/config.yaml: batch_size: wrong", "config.yaml: batch_size: wrong"),
        ("none in '/srv/my models/resnet', such as '/srv/my models/resnet/1'", "none in 'resnet', such as '1'"),
        ("a [/srv/my models/resnet/1/w.bin] b", "a [1/w.bin] b"),
        ("'/srv/my models/resnet50/1' is another", "'1' is another"),
        ("At:\n  /srv/my models/resnet/1/model.py(3): initialize", "At:\n  1/model.py(3): initialize"),
    ],
)
def test_a_file_in_the_models_folder_is_named_by_its_path_from_there(text: str, told: str) -> None:
    assert without_paths(text, FOLDER, "/elsewhere") == told


def test_a_folder_may_have_any_name() -> None:
    assert without_paths(r"none in '/srv/a\1\g<x>'", r"/srv/a\1\g<x>") == r"none in 'a\1\g<x>'"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[Errno 2] No such file: '/etc/a b/key.pem'", "[Errno 2] No such file: 'key.pem'"),
        ('cannot open "/tmp/x/weights.bin".', 'cannot open "weights.bin".'),
        ("cannot open /tmp/x/weights.bin.", "cannot open weights.bin."),
        ("in (/usr/lib/a.so:12), /usr/lib/b.so", "in (a.so:12), b.so"),
        ("/usr/lib:/etc/x", "lib:x"),
        ("at file:///tmp/x/y and 'file:///tmp/x/y z'", "at y and 'y z'"),
        ("'/tmp/' and /tmp. And /tmp", "'tmp' and tmp. And tmp"),
        ("path=/tmp/x/y", "path=y"),
    ],
)
def test_of_any_other_file_the_name_is_left(text: str, told: str) -> None:
    assert without_paths(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "Node (/encoder_of_mine/layer.0/MatMul) Op (MatMul) failed",
        "not all could be read: s3://bucket/tmp/etc, https://hub/tmp/x, http://[::1]/tmp/x",
        "tmp/x, ./tmp/x, ~/tmp/x, ../tmp/x, input/output error",
        "/tmp.not/there and /tmpx/y",
        "no slash",
        "/",
        "",
    ],
)
def test_what_is_no_path_of_the_server_stays(text: str) -> None:
    assert without_paths(text, "/", "m", "") == text


def test_folders_by_a_path_that_is_not_absolute_count_too() -> None:
    assert (
        without_paths("'models/m/1/model.onnx' and xmodels/m/1", Path("models/m")) == "'1/model.onnx' and xmodels/m/1"
    )


def test_a_root_that_cannot_be_listed_leaves_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert without_paths("in /etc/x and /srv/m/1", "/srv/m") == "in /etc/x and 1"


@pytest.mark.alone
def test_a_long_text_is_no_burden() -> None:
    began = time.thread_time()
    without_paths("'/tmp/" * 50_000, "/tmp/m")
    without_paths("/" * 300_000, "/tmp/m")
    assert time.thread_time() - began < 5
