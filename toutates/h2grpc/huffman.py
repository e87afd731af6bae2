"""Decoding Huffman-coded strings (RFC 7541 section 5.2), an octet at a time.

grpc-go and all users of Rust's ``h2`` Huffman-code every string, so a ``traceparent`` is 39 octets that differ in each
call. The ``hpack`` package decodes it nibble by nibble in 5.3 us; a table of whole octets takes 1.3 (on 3.14t 6.1 and
1.2). That table is made from the package's. All of it would take 7 MB, so each of its 256 rows (27 KB) is made when it
is first needed; a ``traceparent`` needs 26.
"""

from __future__ import annotations

from typing import TypeAlias

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

__all__ = ["decode_huffman"]

#: The effect of one octet: the row for the next octet, the characters that it completes, whether the string may end
#: after it, and the number of that row.
Step: TypeAlias = "tuple[list[Step], bytes, bool, int]"

#: The decoder's states. Each is a row with a Step per octet, empty until it is first needed.
_ROWS: list[list[Step]] = [[] for _ in range(len(HUFFMAN_TABLE) // 16)]
_START: Step = (_ROWS[0], b"", True, 0)
#: The number of the row that is reached by codes that do not exist, and that no octet leads out of.
_NOWHERE = -1
_INVALID: list[Step] = []
_INVALID += [(_INVALID, b"", False, _NOWHERE)] * 256


def decode_huffman(octets: bytes) -> bytes:
    """The string that ``octets`` stand for.

    Raises:
        ValueError: they do not end at the end of a character and its padding, or hold a code that does not exist.
    """
    while True:
        step = _START
        try:
            text = b"".join([(step := step[0][octet])[1] for octet in octets])
            break
        except IndexError:  # a row that was not made yet
            _make_row(step[3])
    if step[3] == _NOWHERE:
        raise ValueError("Invalid Huffman string")
    if not step[2]:
        raise ValueError("Incomplete Huffman string")
    return text


def _make_row(state: int) -> None:
    # Threads share the rows: one assignment, and another thread that makes the same row assigns the same.
    _ROWS[state][:] = [_step(state, octet) for octet in range(256)]


def _step(state: int, octet: int) -> Step:
    characters = bytearray()
    flags = 0
    for nibble in (octet >> 4, octet & 0x0F):
        state, flags, character = HUFFMAN_TABLE[state * 16 + nibble]
        if flags & HUFFMAN_FAIL:
            return _INVALID[0]
        if flags & HUFFMAN_EMIT_SYMBOL:
            characters.append(character)
    return _ROWS[state], bytes(characters), bool(flags & HUFFMAN_COMPLETE), state
