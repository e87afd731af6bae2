from __future__ import annotations

import gc

import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.h2grpc.frames import UNARY, Fields, block, literal, request
from tests.h2grpc.support import METHODS
from toutates.h2grpc import Limits, Status
from toutates.h2grpc.headers import (
    OK_HEADERS,
    OK_TRAILERS,
    HeaderBlockError,
    HeaderReader,
    RequestHead,
    encode_block,
    error_block,
    metadata_fields,
)
from toutates.system.interpreter import free_threaded


def reader(limits: Limits | None = None) -> HeaderReader:
    return HeaderReader(METHODS, limits or Limits())


def raw(fields: Fields) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((n.encode() if isinstance(n, str) else n, v.encode() if isinstance(v, str) else v) for n, v in fields)


def pairs(found: RequestHead) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(field[:2] for field in found.fields)


# --- the memory ------------------------------------------------------------------------------------------------------


def test_reader_remembers_a_block_that_leaves_the_table_alone() -> None:
    headers = reader()
    plain = block(request())
    first = headers.read(plain)
    assert headers.memory == {plain: first}
    assert pairs(first) == raw(request())
    assert first.method is METHODS[UNARY.encode()]


def test_reader_does_not_remember_a_block_that_changes_the_table_and_forgets_the_others() -> None:
    headers = reader()
    plain = block(request())
    headers.read(plain)
    inserting = block(request(), form=0x40)
    headers.read(inserting)
    assert headers.memory == {}
    headers.read(plain)
    headers.read_trailers(literal("x-a", "b"))
    assert list(headers.memory) == [plain]
    headers.read_trailers(literal("x-a", "b", 0x40))
    assert headers.memory == {}


def test_reader_does_not_remember_a_block_that_resizes_the_table_and_adds_to_it() -> None:
    headers = reader()
    headers.read(b"\x3f\x45" + block(request()) + literal("x-a", "b", 0x40))  # 31 + 69 bytes
    assert headers.memory == {}


def test_same_index_bytes_mean_something_else_once_the_client_inserted_an_entry() -> None:
    """C-core's blocks are indices only; a new entry shifts what they stand for."""
    headers = reader()
    headers.read(block(request()[:-1]) + literal("te", "trailers") + literal("x-id", "one", 0x40))
    newest = block(request()) + b"\xbe"
    assert headers.read(newest).metadata() == [("x-id", "one")]
    assert newest in headers.memory
    headers.read(block(request()) + literal("x-id", "two", 0x40))
    assert newest not in headers.memory
    assert headers.read(newest).metadata() == [("x-id", "two")]


def test_equal_entry_inserted_again_shifts_the_others_all_the_same() -> None:
    headers = reader()
    for value in ("one", "two", "two"):
        headers.read(block(request()) + literal("x-id", value, 0x40))
    second = block(request()) + b"\xbf"
    assert headers.read(second).metadata() == [("x-id", "two")]
    headers.read_trailers(literal("x-id", "two", 0x40))
    assert headers.read(block(request()) + b"\xc0").metadata() == [("x-id", "two")]
    assert headers.read(block(request()) + b"\xc1").metadata() == [("x-id", "one")]


@pytest.mark.parametrize(
    "change",
    [b"\x20", b"\x20\x3f\xe1\x1f", b"\x3f\x01", b"\x20\x3f\xe1\x1f" + literal("x-id", "two", 0x40)],
    ids=["to 0", "to 0 and back", "to 32", "to 0 and back with an entry"],
)
def test_table_size_updates_make_the_reader_forget(change: bytes) -> None:
    headers = reader()
    headers.read(block(request()) + literal("x-id", "one", 0x40))
    newest = block(request()) + b"\xbe"
    headers.read(newest)
    headers.read_trailers(change)
    assert headers.memory == {}
    if change.endswith(b"two"):
        assert headers.read(newest).metadata() == [("x-id", "two")]
    else:
        with pytest.raises(HeaderBlockError, match="cannot be decoded"):
            headers.read(newest)


def test_table_that_shrank_to_its_newest_entry_and_grew_again_makes_the_reader_forget() -> None:
    headers = reader()
    for value in ("one", "two"):
        headers.read(block(request()) + literal("x-id", value, 0x40))
    older = block(request()) + b"\xbf"
    assert headers.read(older).metadata() == [("x-id", "one")]
    headers.read_trailers(b"\x3f\x21\x3f\xe1\x1f")  # 64 bytes, then 4,096
    assert headers.memory == {}
    with pytest.raises(HeaderBlockError):
        headers.read(older)


def test_entry_larger_than_the_table_empties_it_and_the_memory() -> None:
    headers = reader()
    headers.read(block(request()) + literal("x-id", "one", 0x40))
    headers.read(block(request()) + b"\xbe")
    headers.read(block(request()) + literal("x-big", "v" * 5_000, 0x40))
    assert headers.memory == {}
    with pytest.raises(HeaderBlockError):
        headers.read(block(request()) + b"\xbe")


def test_memory_is_bounded_by_number_and_by_the_size_of_blocks() -> None:
    headers = reader(Limits(header_memory_entries=4))
    for number in range(50):
        headers.read(block(request(UNARY, ("x-id", str(number)))))
        assert len(headers.memory) <= 4
    large = block(request(UNARY, ("x-id", "v" * 5_000)))
    headers.read(large)
    assert large not in headers.memory


VALUES = st.sampled_from(["one", "two", "three", "v" * 900])
BLOCK_PARTS = st.lists(st.tuples(st.sampled_from(["x-a", "x-b"]), VALUES, st.booleans()), max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(BLOCK_PARTS, st.sampled_from([None, None, None, 0, 100, 4_096])), max_size=20))
def test_reader_with_memory_reads_what_a_decoder_without_one_reads(
    blocks: list[tuple[list[tuple[str, str, bool]], int | None]],
) -> None:
    """An encoder that indexes and resizes at will, opposite the reader as the connection uses it."""
    encoder = Encoder()
    headers = reader()
    plain = Decoder()
    for parts, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        fields = [(name, value, not indexed) for name, value, indexed in parts]
        octets = encoder.encode([*request(), *fields])
        found = headers.memory.get(octets) or headers.read(octets)
        assert pairs(found) == tuple((bytes(n), bytes(v)) for n, v in plain.decode(octets, raw=True))


# --- responses -------------------------------------------------------------------------------------------------------


def decode(octets: bytes) -> list[tuple[bytes, bytes]]:
    return [(bytes(n), bytes(v)) for n, v in Decoder().decode(octets, raw=True)]


@pytest.mark.skipif(free_threaded(), reason="each collection visits all objects")
def test_the_collector_looks_at_fields_once_however_many_are_kept() -> None:
    fields = reader().read(block(request(UNARY, *((f"x-{at}", f"{at}") for at in range(200))))).fields
    for _ in range(4):  # a tuple leaves after those that it holds
        gc.collect()
    own = [field for field in fields if field[0].startswith(b"x-")]  # others are the static table's
    assert len(own) == 200
    assert not any(map(gc.is_tracked, own))


def test_constant_blocks_say_what_they_should_and_leave_the_table_empty() -> None:
    decoder = Decoder()
    decoder.header_table_size = 0
    assert [(bytes(n), bytes(v)) for n, v in decoder.decode(OK_HEADERS, raw=True)] == [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
    ]
    assert decode(OK_TRAILERS) == [(b"grpc-status", b"0")]


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=20_000)), max_size=5))
@settings(max_examples=50, deadline=None)
def test_encoded_block_decodes_to_its_fields(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = Decoder(max_header_list_size=2**20)
    assert [(bytes(n), bytes(v)) for n, v in decoder.decode(encode_block(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 16_510, 16_511])
def test_encoded_lengths_hold_at_the_edges_of_the_integer_representation(length: int) -> None:
    assert decode(encode_block([(b"n", b"v" * length)])) == [(b"n", b"v" * length)]


def test_metadata_fields_encode_bytes_without_padding() -> None:
    assert metadata_fields([("x-a", "b"), ("x-bin", b"\xff")]) == [(b"x-a", b"b"), (b"x-bin", b"/w")]


@pytest.mark.parametrize(
    "entry",
    [("x-bin", "text"), ("x-a", b"bytes"), ("X-A", "b"), ("x a", "b"), ("x-a", "b\r\nc: d"), ("x-a", "é"), ("", "")],
)
def test_metadata_that_no_field_may_have_is_the_handlers_mistake(entry: tuple[str, str | bytes]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        metadata_fields([entry])


@pytest.mark.parametrize("text", ["e" * 100_000, "é" * 100_000, "%" * 100_000, "\U0001f600" * 100_000, "\n" * 100_000])
def test_error_never_makes_a_header_list_above_8_kilobytes(text: str) -> None:
    """C-core fails calls at random between its soft limit of 8 KiB and its hard one of 16."""
    fields = decode(error_block(Status.INTERNAL, text, trailers_only=True))
    assert sum(len(name) + len(value) + 32 for name, value in fields) < 8_192


def test_errors_with_the_same_words_are_encoded_once_but_for_long_ones() -> None:
    metadata = [("retry-after", "1")]
    blocks = [error_block(Status.UNAVAILABLE, "busy", metadata, trailers_only=only) for only in (True, True, False)]
    assert blocks[0] is blocks[1]
    assert decode(blocks[0])[-2:] == [(b"grpc-message", b"busy"), (b"retry-after", b"1")]
    assert (b":status", b"200") not in decode(blocks[2])
    assert error_block(Status.UNAVAILABLE, "busy", trailers_only=True) != blocks[0]
    long = [error_block(Status.INTERNAL, "x" * 2_000, trailers_only=True) for _ in range(2)]
    assert long[0] == long[1]
    assert long[0] is not long[1]  # nothing of a model's own length is kept
