"""Files of class labels: lines, encodings, sizes, and what a configuration says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toutates.models.config.labels import Labels, read_labels, shortfalls
from toutates.models.config.settings import ModelSettings, load_settings
from toutates.models.config.yaml_writer import write_yaml
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError

FP32 = BY_NAME["FP32"]
SIGNATURE = Signature(
    inputs=(TensorSpec("x", FP32, (4,)),),
    outputs=(TensorSpec("a", FP32, (2,)), TensorSpec("b", FP32, (-1,)), TensorSpec("c", FP32, (3, 1))),
    batched=True,
)


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"\n\nc\n", ["", "", "c"]),
        (b"a b\r\nc\r\n\r\n", ["a b", "c", ""]),
        ("Übung\nж:щ\n".encode(), ["Übung", "ж:щ"]),
    ],
)
def test_every_line_is_the_label_of_a_class(data: bytes, labels: list[str]) -> None:
    read = Labels(data)
    assert (len(read), read.longest) == (len(labels), max(map(len, data.split(b"\n"))))
    assert read.of([*range(len(read)), len(read), 10**9]) == [*labels, "", ""]


def test_one_of_many_labels_is_the_same_as_all_of_them() -> None:
    labels = Labels(b"".join(b"label %d\r\n" % number for number in range(1_000)))
    every = labels.of(range(1_000))
    assert every == [f"label {number}" for number in range(1_000)]
    assert [labels.of([number]) for number in range(1_000)] == [[label] for label in every]
    assert labels.of([1_000]) == [""]


def test_labels_are_known_by_the_index_of_their_output(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "c.txt").write_bytes(b"one\ntwo\n")
    settings = ModelSettings(labels={"b": "b.txt", "c": "1/c.txt", "not offered": "nowhere"})
    source = tmp_path / "config.pbtxt"
    labels = read_labels(settings, SIGNATURE, tmp_path, source)
    assert {at: own.of([0, 1]) for at, own in labels.items()} == {1: ["one", "two"], 2: ["one", "two"]}
    assert shortfalls(labels, SIGNATURE, settings, source) == [
        f"'{source}': output 'c' has 3 values, and '1/c.txt' 2 labels"
    ]


@pytest.mark.parametrize(("name", "key"), [("config.yaml", "labels.a"), ("config.pbtxt", "output 'a' label_filename")])
def test_a_directory_for_a_file_is_refused_by_file_and_key(tmp_path: Path, name: str, key: str) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(ConfigurationError) as caught:
        read_labels(ModelSettings(labels={"a": "a.txt"}), SIGNATURE, tmp_path, tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: {key}: failed to open text file for read '")
    assert "is not a regular file; put a text file there" in str(caught.value)


def test_config_yaml_names_files_and_refuses_those_outside(tmp_path: Path) -> None:
    keys = "backend: supertensor\nbatch_size: 5\ncapacity: 4\nnum_executors: 1\nallocator: cpu\n"
    source = tmp_path / "config.yaml"
    source.write_text(keys + "labels: {a: names.txt, b: more/names.txt}\n")
    settings = load_settings(tmp_path)
    assert settings is not None
    assert settings.labels == {"a": "names.txt", "b": "more/names.txt"}
    source.write_text(write_yaml(settings))
    assert load_settings(tmp_path) == settings
    source.write_text(keys + "labels: {a: ../../names.txt}\n")
    with pytest.raises(ConfigurationError, match=r"labels\.a: leaves the directory that it belongs into"):
        load_settings(tmp_path)
    source.write_text(keys + "labels: {a: [cat, dog]}\n")
    with pytest.raises(ConfigurationError, match=r"labels\.a: is neither a text nor a whole number"):
        load_settings(tmp_path)
