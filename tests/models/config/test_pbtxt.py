"""config.pbtxt as a file: what is read from it, and how a file that cannot be read is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toutates.models.config.pbtxt import parse_pbtxt, read_pbtxt, write_pbtxt
from toutates.system.errors import ConfigurationError

SOURCE = Path("models/m/config.pbtxt")

# Each row: the file, what the error says after Triton's text and the path, and the remedy.
BAD = {
    "unknown field": (
        "max_batch_size: 4\nmax_batch_sise: 5\n",
        'line 2, column 1: Message type "inference.ModelConfig" has no field named "max_batch_sise"',
        "did you mean `max_batch_size`?",
    ),
    "unknown nested field": ("input { datatype: 1 }", 'has no field named "datatype"', "did you mean `data_type`?"),
    "field of another world": ("qqqqqqq: 1", 'has no field named "qqqqqqq"', "remove `qqqqqqq`"),
    "not closed": ("input {\n name: 'x'\n", "line 2", "correct the text there"),
    "text for a number": ("max_batch_size: 'four'", "line 1, column 17", "correct the text there"),
    "number out of range": ("max_batch_size: 99999999999", "line 1, column 17", "correct"),
    "unknown enum value": ("input { data_type: TYPE_FP31 }", "TYPE_FP31", "correct the text there"),
    "given twice": ("name: 'a' name: 'b'", "should not have multiple", "correct the text there"),
    "two schedulers": ("dynamic_batching { } sequence_batching { }", "line 1, column 22", "correct the text there"),
}


@pytest.mark.parametrize(("text", "problem", "remedy"), BAD.values(), ids=BAD.keys())
def test_a_text_that_is_no_model_config_is_refused_by_place_and_remedy(text: str, problem: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_pbtxt(text, SOURCE)
    said = str(caught.value)
    assert said.startswith(f"failed to read text proto from {SOURCE}: ")
    assert problem in said
    assert remedy in said
    assert "\n" not in said


def test_an_absent_file_is_none(tmp_path: Path) -> None:
    assert read_pbtxt(tmp_path / "config.pbtxt") is None


def test_comments_and_a_byte_order_mark_are_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(b"\xef\xbb\xbf# a comment\nname: 'm' # another\n")
    config = read_pbtxt(path)
    assert config is not None
    assert config.name == "m"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"name: 'm'\n# caf\xe9\n", "line 2: is not UTF-8; save it as UTF-8", id="not UTF-8"),
        pytest.param(b"#" * (2**20 + 1), "is larger than 1048576 bytes", id="too large"),
    ],
)
def test_a_file_of_other_bytes_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=problem):
        read_pbtxt(path)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name, problem in {
        "directory": "is not a regular file",
        "fifo": "is not a regular file",
        "loop": "Too many levels of symbolic links",
        "link": "is a link to a file that does not exist",
    }.items():
        with pytest.raises(ConfigurationError, match=f"failed to read text proto from .*{name}: {problem}"):
            read_pbtxt(tmp_path / name)


PIECES = ["input {", "}", "[", "]", "name:", "'a'", "dims:", "-1", ",", "max_batch_size: 4", "<", ">", "#", "\n", "\\"]
PIECES += ["parameters { key:", "'\\400'", "nan", "1e999", "optimization", "[a.b/c]", "0x", "'''", "9" * 400]


# Protobuf hands an octal escape beyond a byte on to Python, which warns of it.
@pytest.mark.filterwarnings("ignore:.*octal escape")
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=20).map(" ".join))
def test_any_text_gives_a_config_or_a_configuration_error_that_can_be_logged(text: str) -> None:
    try:
        config = parse_pbtxt(text, SOURCE)
    except ConfigurationError as error:
        str(error).encode(errors="backslashreplace")
    else:
        assert parse_pbtxt(write_pbtxt(config), SOURCE) == config
