"""Safetensors files are read as the format says, and nothing that a header claims is believed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toutates.protocol.safetensors import Changed, open_safetensors
from toutates.system.errors import ConfigurationError


def file_of(header: Any, content: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + content


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_tensors_are_read_and_half_precision_is_widened(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0, 0.25]], np.float32)
    parts = {
        "single": ("F32", values.tobytes()),
        "half": ("F16", values.astype(np.float16).tobytes()),
        "brain": ("BF16", (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()),
        "double": ("F64", values.astype(np.float64).tobytes()),
        "odd": ("U8", b"x"),
    }
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for name, (dtype, data) in parts.items():
        shape = [1] if dtype == "U8" else [1, 3]
        header[name] = entry(dtype, shape, [len(content), len(content) + len(data)])
        content += data
    header["nothing"] = entry("F32", [0, 7], [len(content), len(content)])
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(header, content))
    tensors = open_safetensors(path)
    for name in ("single", "half", "brain", "double"):
        np.testing.assert_array_equal(tensors[name].float32(), values)
    assert tensors["nothing"].float32().shape == (0, 7)
    with pytest.raises(ConfigurationError, match=r"model.safetensors: odd: is of type U8, where floating-point"):
        tensors["odd"].float32()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"1234567", "is shorter than its header"),
        (file_of({}, length=0), "says that its header has 0 bytes"),
        (file_of({}, length=2**63), "says that its header has 9223372036854775808 bytes, of 10 of the file"),
        (file_of({}, length=3), "says that its header has 3 bytes"),
        (file_of(b"[]"), "has a header that does not begin with '{'"),
        (file_of(b"{" * 5000), "has a header that is no JSON object"),
        (file_of(b'{"a": ' + b"[" * 100_000 + b"}"), "has a header that is no JSON object"),
        (file_of(b'{"a": 1, "a": 2}'), "no JSON object: a name stands twice in it"),
        (file_of(b'{"\xff": 1}'), "has a header that is no JSON object"),
        (file_of({"a": 1}), "a: has no entry of dtype, shape and data_offsets"),
        (file_of({"a": {**entry(), "more": 1}}, bytes(8)), "a: has no entry of dtype"),
        (file_of({"a": entry("F8_E4M3", [8])}, bytes(8)), "a: has the type F8_E4M3, which cannot be read"),
        (file_of({"a": entry(["F32"])}, bytes(8)), "a: has the type ['F32'], which cannot be read"),
        (file_of({"a": entry(shape=[True, 2])}, bytes(8)), "a: has a shape that is no list"),
        (file_of({"a": entry(shape=[-2])}, bytes(8)), "a: has a shape that is no list"),
        (file_of({"a": entry(shape=[2.0])}, bytes(8)), "a: has a shape that is no list"),
        (file_of({"a": entry(shape=[2**62, 2**62, 8])}, bytes(8)), "a: has 8 bytes, which is not what its type"),
        (file_of({"a": entry(shape=[1] * 9)}, bytes(8)), "a: has a shape that is no list of at most 8"),
        (file_of({"a": entry(offsets=[0, 8, 9])}, bytes(8)), "a: has data_offsets that are no two offsets"),
        (file_of({"a": entry(offsets=[8, 0])}, bytes(8)), "a: has the bytes 8 to 0, of 8"),
        (file_of({"a": entry(offsets=[0, 16], shape=[4])}, bytes(8)), "a: has the bytes 0 to 16, of 8"),
        (
            file_of({"a": entry(offsets=[8, 16])}, bytes(16)),
            "a: begins at byte 8, where the tensor before ends at 0",
        ),
        (file_of({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)), "b: begins at byte 4"),
        (file_of({"a": entry(), "b": entry()}, bytes(8)), "b: begins at byte 0"),
        (file_of({"a": entry()}, bytes(9)), "has 1 bytes behind its tensors"),
        (file_of({"a\nb\x1b[31m": entry()}, bytes(9)), "has 1 bytes behind its tensors"),
        (file_of({"a\n\x1b[31m": 1}), r"a\n\x1b[31m: has no entry"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_lies_is_refused(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        open_safetensors(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no regular file"):
        open_safetensors(tmp_path)
    with pytest.raises(ConfigurationError, match="is no regular file"):
        open_safetensors(tmp_path / "missing")


@pytest.mark.parametrize("size", [0, 12, 200])
def test_a_file_that_is_written_while_it_is_open_is_told(tmp_path: Path, size: int) -> None:
    """It would end the process, or change its numbers, if it were mapped."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"a": entry()}, np.ones(2, np.float32).tobytes()))
    tensor = open_safetensors(path)["a"]
    assert tensor.float32().tolist() == [1, 1]
    path.write_bytes(bytes(size))
    with pytest.raises(Changed, match=r"model.safetensors: has changed while it was read"):
        tensor.float32()


_offsets = st.lists(st.integers(-2, 40), min_size=1, max_size=3)
_entries = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "F16", "U8", "X"]), "shape": _offsets, "data_offsets": _offsets}
)


@given(st.dictionaries(st.text(max_size=3), _entries, max_size=4), st.binary(max_size=40))
def test_any_header_is_read_within_the_file_or_refused(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(file_of(header, content))
    try:
        tensors = open_safetensors(path)
    except ConfigurationError:
        return
    assert sum(tensor.data.nbytes for tensor in tensors.values()) == len(content)
