"""Bodies of requests: JSON to typed requests, in bounded time and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from toutates.api.text.half_characters import STEPPED_BYTES, half_character
from toutates.api.text.large_json import BadJson, TooMuch, read_large
from toutates.api.text.members import Members
from toutates.api.text.problems import Kind, Problem
from toutates.protocol.strings import rest

__all__ = ["LARGE_BYTES", "MAX_BODY_BYTES", "MAX_INPUTS", "UNREAD", "BodyReader", "check_count", "check_texts"]

T = TypeVar("T")

#: Longer bodies are read beside the worker: 32 KiB take 0.2 ms.
LARGE_BYTES: Final = 32_768
#: Longer ones are refused. The texts of one request that are meant have a tenth of it.
MAX_BODY_BYTES: Final = 16_777_216
#: Texts of one request.
MAX_INPUTS: Final = 2_048

#: What ``BodyReader.decode`` raises.
UNREAD: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)

_AT: Final = re.compile(r" - at `\$\.?([^`]*)`")
_NAMED: Final = re.compile(r"(?:required|unknown) field `([^`]*)`")


class BodyReader(Generic[T]):
    """Reads bodies of one kind.

    Args:
        kind: a ``msgspec.Struct`` without unknown members, or another type that ``msgspec`` reads.
        members: what is made of other members, where ``kind`` is a struct; None for no others.
    """

    def __init__(self, kind: type[T], members: Members | None = None) -> None:
        self._kind = kind
        self._members = members
        #: reads a body at once, and raises what ``problem_of`` takes
        self.decode = msgspec.json.Decoder(kind).decode

    def read(self, body: bytes | bytearray) -> tuple[T, tuple[str, ...]]:
        """A body as its kind, and the names of the members that are ignored.

        Raises:
            Problem: it is none.
        """
        try:
            if len(body) > STEPPED_BYTES:
                return self.convert(read_large(body, rest))
            try:
                return self.decode(body), ()
            except msgspec.ValidationError as error:
                if self._members is None:
                    raise problem_of(error) from None
            return self.convert(msgspec.json.decode(body))
        except (*UNREAD, BadJson, TooMuch) as error:
            raise half_character(body) or problem_of(error) from None

    def convert(self, document: Any) -> tuple[T, tuple[str, ...]]:
        """See ``read``; of what JSON was read as."""
        try:
            return msgspec.convert(document, self._kind), ()
        except msgspec.ValidationError as error:
            if self._members is None or not isinstance(document, dict):
                raise problem_of(error) from None
        sorted_members = self._members.sort(document, self._kind.__struct_fields__)  # type: ignore[attr-defined]
        try:
            return msgspec.convert(sorted_members.said, self._kind), sorted_members.ignored
        except msgspec.ValidationError as error:
            raise problem_of(error, sorted_members.names) from None


def problem_of(error: Exception, names: Mapping[str, str] | None = None) -> Problem:
    """What is wrong with a body that cannot be read.

    Args:
        error: it.
        names: by which name the body has a member; by its own where it is not here.
    """
    if isinstance(error, msgspec.ValidationError):
        text = str(error)
        place = _AT.search(text)
        named = _NAMED.search(text)
        path = "" if place is None else place[1]
        path = (names or {}).get(path, path)
        if named is not None:
            path = f"{path}.{named[1]}" if path else named[1]
        if place is not None:
            text = text.replace(place[0], "")
        return Problem(Kind.FORM, f"{path}: {text}" if path else f"the body: {text}", path)
    if isinstance(error, TooMuch):
        return Problem(Kind.TOO_MANY, str(error))
    if isinstance(error, RecursionError):
        return Problem(Kind.SYNTAX, "the request's JSON is nested too deep")
    text = "invalid UTF-8" if isinstance(error, UnicodeError) else str(error)
    return Problem(Kind.SYNTAX, f"the body is no JSON: {text}")


def check_count(count: int, member: str, most: int = MAX_INPUTS) -> None:
    """Refuse a request without texts, or with too many.

    Raises:
        Problem: it is one.
    """
    if not count:
        raise Problem(Kind.EMPTY, f"`{member}` cannot be empty", member)
    if count > most:
        raise Problem(Kind.TOO_MANY, f"batch size {count} > maximum allowed batch size {most}", member)


def check_texts(texts: list[str], member: str) -> None:
    """Refuse empty texts.

    Raises:
        Problem: one is.
    """
    if "" in texts:
        index = texts.index("")
        raise Problem(Kind.VALUE, f"`{member}[{index}]` cannot be an empty string", f"{member}[{index}]")
