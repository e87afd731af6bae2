"""From texts as they came to the tokens of rows: decoding, prompts, lower case, tokenizing, cutting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from toutates.backends.text.interface import Fault, TextError
from toutates.backends.text.tokenizing import NO_FRAME, Frame, WordTokenizer, check_unicode
from toutates.backends.text.work import Row, Settled, TextRequest
from toutates.system.errors import RequestError

__all__ = ["ReadTexts", "Reader", "Slice"]

#: A text is never read beyond so many characters, or so many for each token of the limit. Only white space, of which no
#: token is made, can be so long and have its tokens further back.
_MOST_CHARACTERS: Final = 1_000_000
_CHARACTERS_PER_TOKEN: Final = 1_000
#: Ids of more tokens are kept in an array.
_FEW_TOKENS: Final = 64

#: Some of a request's texts: from the first to before the last.
Slice: TypeAlias = tuple[TextRequest, int, int]
_String: TypeAlias = str | tuple[str, str]


class ReadTexts:
    """What has become of texts.

    Attributes:
        rows: those that are to be computed.
        empty: those without a token, of models that have a vector for them.
        failed: requests that cannot be answered, and why.
        cut: how many texts were cut.
    """

    __slots__ = ("cut", "empty", "failed", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.empty: list[Row] = []
        self.failed: list[tuple[TextRequest, RequestError]] = []
        self.cut = 0


class Reader:
    """Reads the tokens of texts. Any number of threads may use it at once.

    Args:
        tokenizer: of the model.
        vocabulary: ids of tokens are below it.
        lower: whether texts are put into lower case first.
        takes_empty: whether a text without a token has a vector.
        frame: what texts that come as ids have to have around them; None where any ids are taken as they are.

    Attributes:
        lower: as given.
    """

    def __init__(
        self, tokenizer: WordTokenizer, vocabulary: int, *, lower: bool, takes_empty: bool, frame: Frame | None
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self.lower = lower
        self._takes_empty = takes_empty
        self._frame = frame

    def read(self, slices: Sequence[Slice]) -> ReadTexts:
        """Read texts of some requests. Never raises for a text's sake."""
        done = ReadTexts()
        strings: dict[tuple[bool, int], tuple[list[Row], list[_String]]] = {}
        last: Settled | None = None
        for request, first, end in slices:
            settled = request.settled
            if settled is not last:
                last = settled
                rows, texts = strings.setdefault((settled.special, settled.limit), ([], []))
                as_is = not (settled.prompt or self.lower)
            for index in range(first, end):
                text: Any = request.texts[index]
                try:
                    if as_is and type(text) is str and text.isascii() and len(text) <= _MOST_CHARACTERS:
                        texts.append(text)
                    elif type(text) is str or type(text) is bytes or type(text) is tuple:
                        texts.append(self._prepared(text, settled))
                    else:
                        self._take_ids(Row(request, index, text, has_prompt=False), done)
                        continue
                except TextError as error:
                    done.failed.append((request, _of(error, index)))
                    break
                rows.append(Row(request, index, ()))
        for (special, limit), (rows, texts) in strings.items():
            if rows:
                self._encode(rows, texts, special, limit, done)
        return done

    def ids_of(self, texts: Sequence[str], settled: Settled) -> list[list[int]]:
        """The ids of the tokens of short texts, which are read as they came (``Settled.as_is``).

        Raises:
            TextError: the tokenizer failed.
        """
        return self._tokenizer.ids_of(texts, special=settled.special)

    def _prepared(self, text: str | bytes | tuple[Any, Any], settled: Settled) -> _String:
        if isinstance(text, tuple):
            first, second = text
            return self._prepared_string(first, settled.prompt, settled), self._prepared_string(second, "", settled)
        return self._prepared_string(text, settled.prompt, settled)

    def _prepared_string(self, text: str | bytes, prompt: str, settled: Settled) -> str:
        if isinstance(text, bytes):
            try:
                own = text.decode()
            except UnicodeDecodeError as error:
                raise TextError(
                    f"the text is no valid UTF-8: {error.reason} at byte {error.start}", Fault.UNICODE
                ) from None
        else:
            own = text
        most = max(_MOST_CHARACTERS, _CHARACTERS_PER_TOKEN * settled.limit)
        if len(own) > most:
            if not settled.cuts:
                raise TextError(
                    f"the text has {len(own)} characters, and at most {most} are read; shorten it, or ask for it to be "
                    "truncated",
                    Fault.TOO_LONG,
                    tokens=settled.limit + 1,
                    limit=settled.limit,
                )
            own = own[-most:] if settled.left else own[:most]
        if not isinstance(text, bytes):
            check_unicode(own)
        if prompt:
            own = prompt + own
        return own.lower() if self.lower else own

    def _take_ids(self, row: Row, done: ReadTexts) -> None:
        """A text that came as ids of tokens."""
        settled = row.request.settled
        if settled.options.prompt:
            raise TextError("a prompt cannot be put before ids of tokens; send the text", Fault.PROMPT)
        ids = [int(one) for one in row.ids]
        self._tokenizer.check_ids(ids, self._vocabulary)
        frame = self._frame
        if frame is not None and ids:
            frame.check(ids)
        if len(ids) > settled.limit:
            self._check_length(len(ids), settled)
            ids = (frame or NO_FRAME).cut(ids, settled.limit, left=settled.left)
            done.cut += 1
        row.ids = ids
        self._add(row, done)

    def _encode(self, rows: list[Row], texts: list[_String], special: bool, limit: int, done: ReadTexts) -> None:
        try:
            found = self._tokenizer.read(texts, special=special, limit=limit)
        except TextError as error:
            if len(texts) == 1:
                done.failed.append((rows[0].request, _of(error, rows[0].index)))
                return
            for row, text in zip(rows, texts, strict=True):  # one of them is at fault
                self._encode([row], [text], special, limit, done)
            return
        kept = done.rows
        for row, text, tokens in zip(rows, texts, found, strict=True):
            ids = tokens.ids
            size = len(ids)
            if type(text) is str and 0 < size <= limit and size <= _FEW_TOKENS:  # ``_add``, without its call
                row.ids = ids
                row.length = row.context.tokens[row.index] = size
                kept.append(row)
                continue
            try:
                if type(text) is tuple:
                    row.segments = tokens.type_ids
                if len(ids) > limit:
                    settled = row.request.settled
                    self._check_length(len(ids), settled)
                    ids, row.segments = self._tokenizer.cut(text, ids, special=special, limit=limit, left=settled.left)
                    done.cut += 1
                row.ids = ids
                self._add(row, done)
            except TextError as error:
                done.failed.append((row.request, _of(error, row.index)))

    def _add(self, row: Row, done: ReadTexts) -> None:
        size = row.length = row.context.tokens[row.index] = len(row.ids)
        if size:
            if size > _FEW_TOKENS:
                row.ids = np.array(row.ids, np.int32)  # a tenth of the memory of a list
            done.rows.append(row)
        elif self._takes_empty:
            done.empty.append(row)
        else:
            raise TextError("the text has no tokens", Fault.EMPTY)

    @staticmethod
    def _check_length(tokens: int, settled: Settled) -> None:
        if not settled.cuts:
            raise TextError(
                f"the text has {tokens} tokens, and the model takes at most {settled.limit}; shorten it, or ask for it "
                "to be truncated",
                Fault.TOO_LONG,
                tokens=tokens,
                limit=settled.limit,
            )


def _of(error: TextError, index: int) -> TextError:
    error.index = index
    return error
