"""What a route of an API for text is, and what a request for texts to be computed comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from toutates.api.rest.answers import Answer
from toutates.api.text.half_characters import STEPPED_BYTES
from toutates.api.text.lookup import ANY, Lookup, Wants
from toutates.api.text.members import ignored_field
from toutates.api.text.problems import Problem
from toutates.api.text.reading import UNREAD, BodyReader
from toutates.backends.text.interface import Float32, FoundText, Task, Text, TextOptions, TextResult
from toutates.models.table import ModelTable
from toutates.system.errors import anew

__all__ = [
    "Asked",
    "Asks",
    "ByTask",
    "Computing",
    "Form",
    "Page",
    "Route",
    "Stepwise",
    "WriteOne",
    "answer_head",
    "with_ignored",
]

#: Makes the answer to one text of its vector, its number of tokens and the model: ``answer_head``, what is before the
#: vector, the vector, and what is behind it.
WriteOne = Callable[[Float32, int, FoundText], tuple[bytes, bytes, bytes, bytes]]


def answer_head(length: int, fields: bytes = b"") -> bytes:
    """The fields of an answer in JSON that succeeded, with the empty line after them."""
    return b"content-type: application/json\r\n%bcontent-length: %d\r\n\r\n" % (fields, length)


@dataclass(frozen=True, slots=True)
class Form:
    """How an API says things.

    Attributes:
        refuse: the answer to a request that is refused.
        needs_json: whether bodies have to be called JSON by their Content-Type.
    """

    refuse: Callable[[Problem], Answer]
    needs_json: bool = False


class Asked(msgspec.Struct):
    """Texts to be computed, as a request asks for them.

    Attributes:
        model: its name; "" for none.
        wants: what the model has to do.
        texts: at least one.
        options: how they are computed.
        write: makes the pieces of the answer's body, of the result and the model that has computed it.
        form: of the API, where the body alone tells which it is; None for the route's.
        fields: makes further header fields of the answer; None for none.
        bulk: characters of texts that the answer repeats.
        check: refuses what does not fit the model that was found, by Problem.
        find: finds the model in the table, where it need not be a text model; None for by ``model`` and ``wants``.
        write_one: makes the answer where there is one text; None where ``write`` and ``fields`` do.
        ignored: the header field that names the members which were ignored; b"" for none.
    """

    model: str
    wants: Wants
    texts: Sequence[Text]
    options: TextOptions
    write: Callable[[TextResult, FoundText], Iterable[bytes]]
    form: Form | None = None
    fields: Callable[[TextResult, Asked], bytes] | None = None
    bulk: int = 0
    check: Callable[[FoundText], None] | None = None
    find: Callable[[ModelTable], FoundText] | None = None
    write_one: WriteOne | None = None
    ignored: bytes = b""


@dataclass(frozen=True, slots=True)
class Stepwise:
    """Work for the tokenizer of a model, beside the worker.

    Attributes:
        model: its name; "" for none.
        steps: takes the model, and makes a piece of the answer's body in each step.
        ignored: see ``Asked``.
    """

    model: str
    steps: Callable[[FoundText], Iterator[bytes]]
    ignored: bytes = b""


@dataclass(frozen=True, slots=True)
class ByTask:
    """A request whose meaning depends on what the model does.

    Attributes:
        model: its name; "" for none.
        asked: what it asks for of a model of each task, or why such a model refuses it; those of the first for others.
    """

    model: str
    asked: Mapping[Task, Asked | Problem]

    def of(self, lookup: Lookup) -> Asked:
        """What the request asks for: of its model or, if it names none, of the first task that some model does.

        Raises:
            RequestError: nothing, or there is no such model.
        """
        served = {lookup.find(self.model, ANY).model.info.task} if self.model else lookup.tasks()
        task = next((task for task in self.asked if task in served), next(iter(self.asked)))
        asked = self.asked[task]
        if isinstance(asked, Problem):
            raise anew(asked)
        return asked


#: What a body comes to.
Asks = Asked | Stepwise | ByTask | Answer


def with_ignored(asks: Asks, names: Sequence[str]) -> Asks:
    """What a body asks for, and whose answer names the members that were ignored."""
    if isinstance(asks, Asked):
        return msgspec.structs.replace(asks, ignored=ignored_field(names), write_one=None)
    return replace(asks, ignored=ignored_field(names)) if isinstance(asks, Stepwise) else asks


@dataclass(frozen=True, slots=True)
class Page:
    """What a GET is answered with.

    Attributes:
        models: all text models, by name.
        find: the model that a name and a route's need mean; raises RequestError.
        name: that the path or the query gives; "" for none.
        healthy: whether the server is ready.
        limits: what /info tells of the server, by TEI's names.
    """

    models: Sequence[FoundText]
    find: Callable[[str, Wants], FoundText]
    name: str
    healthy: bool
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Computing:
    """A route's POST.

    Attributes:
        reader: of its bodies.
        ask: makes what is to be done of a body that was read, and the model that the query names, "" for none. May
            raise Problem.
        text: the member that may be a string, where nothing that is asked depends on it but ``Asked.texts``; "" for
            none.
    """

    reader: BodyReader[Any]
    ask: Callable[[Any, str], Asks]
    text: str = ""

    def asked(self, body: bytes | bytearray, model: str) -> Asks:
        """What a body asks for.

        Raises:
            Problem: it cannot be read, or asks for what is not offered.
        """
        try:
            if len(body) <= STEPPED_BYTES:  # as nearly all are, and without other servers' members
                return self.ask(self.reader.decode(body), model)
        except UNREAD:
            pass
        request, ignored = self.reader.read(body)
        asks = self.ask(request, model)
        return with_ignored(asks, ignored) if ignored else asks


@dataclass(frozen=True, slots=True)
class Route:
    """A path of an API.

    Attributes:
        path: with ``{id}`` at its end, where that is a model's name.
        form: of the API.
        texts: the member of a body that has the texts; "" for none.
        post: answers POST; None for no such method.
        get: answers GET; None for no such method.
        group: of ``--http-restricted-api``.
    """

    path: str
    form: Form
    texts: str = ""
    post: Computing | None = None
    get: Callable[[Page], Answer] | None = None
    group: str = "inference"
