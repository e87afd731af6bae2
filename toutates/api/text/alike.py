"""Requests whose bodies differ in their text alone, as those of a program that embeds one short text after the other.

What was found out about one of them holds for the others: its model, its options, how it is answered. A body is known
by its bytes before the text and behind it, and is not parsed. ``body_around`` says why that is as strict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import ref

import msgspec

from toutates.api.rest.calls import RestHttpCall
from toutates.api.text.lookup import Lookup
from toutates.api.text.observing import TextObserver
from toutates.api.text.reading import BodyReader
from toutates.api.text.routes import Asked, Route, WriteOne
from toutates.backends.text.interface import MOST_CHARACTERS_HERE, FoundText, TextModel, TextOptions, TextsHere
from toutates.infer.inflight import Inflight
from toutates.models.table import ModelTable

__all__ = ["AlikeBodies", "Crowd", "Gathering", "body_around", "is_plain"]

#: Kinds of bodies that one worker knows of one route, and bytes around the text of one.
MOST_KINDS: Final = 4
MOST_AROUND: Final = 1_024
#: Bodies that are not looked at, at most, where earlier looks were in vain: some callers never send two that are alike.
MOST_PASSED: Final = 1_024
#: Of UTF-8.
MOST_BYTES_PER_CHARACTER: Final = 4

#: Put in a text's place. Letters alone, so that outside of a string they are no JSON.
_PROBES: Final = ("probeOfAnotherText", "textOfAnotherProbe")


def is_plain(text: str) -> bool:
    """Whether a text is written in JSON as it is, and is not empty; false also for some rare ones that would be."""
    return bool(text) and text.isprintable() and '"' not in text and "\\" not in text


def body_around(body: bytes, text: str, member: str, reader: BodyReader[Any]) -> tuple[bytes, bytes] | None:
    """What is around the text in a body, so that with another plain text in between it is read as the same but for it.

    The text is looked for in quotes. With a probe in its place the body has to be read as what it was, but for the
    probe as the member. Then the quotes before and behind are those of the member's string: were the probe in another
    string, the member would be the text still; were it a part of the member's, it would not be all of it; and were it
    in none, the body would be no JSON. What is read up to a string's first quote does not depend on what is in the
    string, and neither does what follows its last one.

    Args:
        body: that was read.
        text: that it has, plain.
        member: whose value that is.
        reader: has read it.

    Returns:
        The bytes before, with the quote, and those behind, which begin with one; None if there are none of that kind.
    """
    needle = b'"%b"' % text.encode()
    at = body.find(needle)
    if at < 0:
        return None
    before, behind = bytes(body[: at + 1]), bytes(body[at + len(needle) - 1 :])
    probe = _PROBES[text == _PROBES[0]]
    try:
        known = reader.decode(body)
        other = reader.decode(before + probe.encode() + behind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if other != msgspec.structs.replace(known, **{member: probe}):
        return None
    return before, behind


class Crowd:
    """Requests of one round with one short text each, which run together.

    Attributes:
        model: of all of them.
        options: likewise.
        route: likewise.
        texts: theirs.
    """

    __slots__ = ("model", "options", "route", "texts")

    def __init__(self, model: TextModel, options: TextOptions, route: Route) -> None:
        self.model = model
        self.options = options
        self.route = route
        self.texts: list[str] = []

    def answer(self, first: int, done: TextsHere) -> tuple[int, bool]:
        """Answer what was computed, and add to the model what it has left out.

        Args:
            first: the index of the first text that was computed.
            done: what came of it and those after it.

        Returns:
            How many were answered and are still to be counted as that, and whether any were added.
        """
        raise NotImplementedError

    def add(self, first: int) -> None:
        """Add the texts from one on to their model."""
        raise NotImplementedError


class Gathering(Protocol):
    """What computes the crowds of a round, for one worker: ``TextWork``, which has it said in full.

    Attributes:
        crowds: of this round, by what each has in common.
        observer: of the requests.
        inflight: bounds those that wait for their answer; None for no bound.
        get_table: returns the table of models as it is now.
    """

    crowds: dict[object, Crowd]
    observer: TextObserver
    inflight: Inflight | None
    get_table: Callable[[], ModelTable]

    def gather(self, key: object, crowd: Crowd) -> None:
        """Have a crowd computed at the round's end, which may grow until then."""
        ...

    def request_of(
        self,
        call: RestHttpCall,
        route: Route,
        lookup: Lookup,
        asked: Asked,
        found: FoundText,
        options: TextOptions,
    ) -> Any:
        """A request for one text, which has a place among those in flight."""
        ...


class _Kind:
    """Bodies that are alike.

    Attributes:
        before, behind: see ``body_around``.
        first, end: where the text begins and, counted from the body's end, ends.
        most: bytes that a body may have. A larger one is not looked into: a worker would copy all of it.
        asked: of all of them, but for the text.
        found, options: of all of them.
        used: whether one has come.
    """

    __slots__ = ("asked", "before", "behind", "end", "first", "found", "most", "options", "used")

    def __init__(self, around: tuple[bytes, bytes], asked: Asked, found: FoundText, options: TextOptions) -> None:
        self.before, self.behind = around
        self.first, self.end = len(self.before), -len(self.behind)
        self.most = len(self.before) + MOST_BYTES_PER_CHARACTER * MOST_CHARACTERS_HERE + len(self.behind)
        self.asked = msgspec.structs.replace(asked, texts=())
        self.found = found
        self.options = options
        self.used = False

    def text_of(self, body: bytes | bytearray) -> str:
        """The text of a body; "" for one that is not of this kind, or to be read for other reasons."""
        if not (body.startswith(self.before) and body.endswith(self.behind) and len(body) <= self.most):
            return ""
        try:
            text = body[self.first : self.end].decode()
        except UnicodeDecodeError:
            return ""
        if text.isprintable() and '"' not in text and "\\" not in text and len(text) <= MOST_CHARACTERS_HERE:
            return text
        return ""


def _no_table() -> None:
    return None


class AlikeBodies:
    """The kinds of bodies that come by one route to one worker.

    They are known for as long as the table of models lives, which nothing here keeps.

    Args:
        work: the worker's.
        route: whose ``Computing.text`` is set.
        lookup: finds the models.
    """

    def __init__(self, work: Gathering, route: Route, lookup: Lookup) -> None:
        self._work = work
        self._route = route
        self._lookup = lookup
        self._observer = work.observer.observer
        self._table: Callable[[], ModelTable | None] = _no_table
        #: the one of the last body first
        self._kinds: list[_Kind] = []
        #: bodies of no kind that are passed over before the next is looked at; and how many they were the last time
        self._left = self._passed = 0

    def take(self, call: RestHttpCall) -> bool:
        """Have a request computed at the round's end; False where it is of no kind, and is to be read.

        0.5 us, in place of the 1.4 us that reading it and finding out what it asks for take.
        """
        body, kinds = call.body, self._kinds
        if not kinds:
            return False
        try:
            kind = kinds[0]
        except IndexError:  # it was cleared just now
            return False
        text = kind.text_of(body)
        if not text:
            other = self._other(body)
            if other is None:
                return False
            kind, text = other
        if self._observer.due:
            return False
        work = self._work
        crowd: Any = work.crowds.get(kind)
        if crowd is None:
            if self._table() is not work.get_table():
                return False
            kind.used = True
            crowd = _AlikeCrowd(work, self._route, self._lookup, kind)
            work.gather(kind, crowd)
        inflight = work.inflight
        if inflight is not None:
            if inflight.count >= inflight.most:
                return False  # it is refused like others
            inflight.count += 1
        crowd.calls.append(call)
        crowd.texts.append(text)
        return True

    def _other(self, body: bytes | bytearray) -> tuple[_Kind, str] | None:
        """The kind of a body that is not of the last one's, which is the first one from now on; and the text."""
        kinds = self._kinds
        for kind in kinds[1:]:
            text = kind.text_of(body)
            if text:
                try:
                    kinds.remove(kind)
                except ValueError:  # the table is gone
                    return None
                kinds.insert(0, kind)
                return kind, text
        return None

    def learn(self, body: bytes | bytearray, asked: Asked, found: FoundText, options: TextOptions) -> None:
        """Know bodies like one that was read, from now on, if that is possible.

        Args:
            body: with one text, of an anonymous caller, that asks for nothing beside what ``asked`` says.
            asked: what it says.
            found: the model that was found just now.
            options: of the text.
        """
        if self._left:
            self._left -= 1
            return
        text: Any = asked.texts[0]
        table = self._lookup.table
        if (
            len(body) > MOST_AROUND + len(text)
            or not is_plain(text)
            or asked.write_one is None
            or table is None
            or asked.model in table.traffic.routes
        ):
            return
        if table is not self._table():
            kinds: list[_Kind] = []
            self._table = ref(table, lambda _: kinds.clear())
            self._kinds = kinds
        assert self._route.post is not None
        around = body_around(bytes(body), text, self._route.post.text, self._route.post.reader)
        kinds = self._kinds
        in_vain = around is None
        if len(kinds) >= MOST_KINDS:
            in_vain |= not kinds.pop().used
        # Every look that was in vain makes the next one rarer.
        self._left = self._passed = min(2 * self._passed + 1, MOST_PASSED) if in_vain else 0
        if around is not None:
            kinds.insert(0, _Kind(around, asked, found, options))


class _AlikeCrowd(Crowd):
    """Requests whose bodies are of one kind.

    Attributes:
        calls: theirs.
    """

    __slots__ = ("_kind", "_lookup", "_work", "_write", "calls")

    def __init__(self, work: Gathering, route: Route, lookup: Lookup, kind: _Kind) -> None:
        super().__init__(kind.found.model, kind.options, route)
        self._work = work
        self._lookup = lookup
        self._kind = kind
        assert kind.asked.write_one is not None
        self._write: WriteOne = kind.asked.write_one
        self.calls: list[RestHttpCall] = []

    def answer(self, first: int, done: TextsHere) -> tuple[int, bool]:
        """See ``Crowd``."""
        calls, texts = (self.calls[first:], self.texts[first:]) if first else (self.calls, self.texts)
        write, found = self._write, self._kind.found
        answered = others = 0
        added = False
        for call, text, vector, tokens in zip(calls, texts, done.vectors, done.tokens, strict=False):
            if vector is None:
                self._request(call, text).add()
                added = True
                others += 1
                continue
            try:
                parts = write(vector, tokens, found)
            except Exception as error:
                others += 1
                self._request(call, text).fail(error)
                continue
            if call.open:
                call.responder.reply(call, parts, sum(map(len, parts[1:])))
                answered += 1
        inflight = self._work.inflight
        if inflight is not None:
            inflight.count -= len(done.vectors) - others
            inflight.left += len(done.vectors) - others
        return answered, added

    def add(self, first: int) -> None:
        """See ``Crowd``."""
        for call, text in zip(self.calls[first:], self.texts[first:], strict=True):
            self._request(call, text).add()

    def _request(self, call: RestHttpCall, text: str) -> Any:
        kind = self._kind
        asked = msgspec.structs.replace(kind.asked, texts=(text,))
        return self._work.request_of(call, self.route, self._lookup, asked, kind.found, kind.options)
