"""A model's tokenizer: Rust's ``tokenizers``, which lets go of the GIL, with our own truncation.

What tokenizer.json says of truncation and padding is switched off: a text is cut after its tokens are known, as the
request and the model's configuration say. A text that is far too long is not read to its end: of its first characters
more tokens are made than can be left, and these are the ones that the whole text would give.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toutates.backends.text.interface import Encoded, Fault, TextError
from toutates.system.errors import ModelLoadError
from toutates.system.text import one_line

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

__all__ = ["NO_FRAME", "Frame", "Tokens", "WordTokenizer", "load_tokenizer"]

#: Characters of a text that are read at first for each token that may be left of it.
_CHARACTERS_PER_TOKEN: Final = 16
#: Texts of fewer characters are always read as a whole.
_SHORT_CHARACTERS: Final = 8_192

#: The tokens of a text, and of which segment each is; None where all are of the first.
Tokens = tuple[list[int], list[int] | None]

#: What to do in place of sending ids: LangChain's clients of OpenAI's API send those of OpenAI's tokenizer by default.
_SEND_TEXT: Final = "send the text itself (LangChain's OpenAIEmbeddings does so with check_embedding_ctx_length=False)"


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens that a tokenizer puts around every text, by which ids of its own are told from others'.

    Attributes:
        before, behind: how many there are.
        first, last: the outermost, as an id and its string; None where there is none on that side.
    """

    before: int = 0
    behind: int = 0
    first: tuple[int, str] | None = None
    last: tuple[int, str] | None = None

    def check(self, ids: Sequence[int]) -> None:
        """Refuse ids that are no text as the tokenizer reads it: those of another tokenizer mean other words here.

        Raises:
            TextError: they lack the frame, or there is none to tell them by.
        """
        first, last = self.first, self.last
        if first is None and last is None:
            raise TextError(
                "this model's tokenizer puts no special tokens around a text, so its ids cannot be told from those of "
                f"another tokenizer: {_SEND_TEXT}, or have the model configured with parameters: {{token_ids: accept}}",
                Fault.TOKEN_ID,
            )
        if (
            len(ids) < self.before + self.behind
            or (first is not None and ids[0] != first[0])
            or (last is not None and ids[-1] != last[0])
        ):
            ends = [
                f"{verb} with {end[0]} ({end[1]})" for verb, end in (("begin", first), ("end", last)) if end is not None
            ]
            raise TextError(
                f"the token ids are not of this model's own tokenizer, whose ids {' and '.join(ends)}: {_SEND_TEXT}",
                Fault.TOKEN_ID,
            )

    def cut(self, ids: Sequence[int], limit: int, *, left: bool) -> list[int]:
        """Ids cut to a limit within their frame; ``left`` cuts off the beginning."""
        end = len(ids) - self.behind
        room = max(0, limit - self.before - self.behind)
        kept = ids[max(self.before, end - room) : end] if left else ids[self.before : min(self.before + room, end)]
        return [*ids[: self.before], *kept, *ids[end:]]


#: Of texts without special tokens.
NO_FRAME: Final = Frame()


def load_tokenizer(directory: Path) -> WordTokenizer:
    """Load a folder's tokenizer. Blocks.

    Raises:
        ModelLoadError: there is none, it cannot be read, or the package for it is not installed.
    """
    # One text after the other: the threads of this server are its executors, and Rust would start its own.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ModelLoadError(
            "text models need the package tokenizers, which is not installed; pip install tokenizers, or the extra "
            "text of toutates"
        ) from error
    path = directory / "tokenizer.json"
    if not path.is_file():
        slow = [name for name in ("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")]
        found = [name for name in slow if (directory / name).exists()]
        remedy = (
            f"convert '{found[0]}' with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            if found
            else "copy the whole model folder"
        )
        raise ModelLoadError(f"unable to find '{path}'; {remedy}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_batch_fast(["a text"])
    except Exception as error:  # the package raises plain ``Exception``
        raise ModelLoadError(f"'{path}' is no tokenizer that can be read: {one_line(error, 300)}") from error
    return WordTokenizer(tokenizer)


class WordTokenizer:
    """A tokenizer (``interface.TextTokenizer``). Any thread may use it; what it is made of is never changed.

    Args:
        tokenizer: without truncation and padding.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        #: ids are below it
        self.vocabulary: int = tokenizer.get_vocab_size(with_added_tokens=True)
        known = tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocabulary = max(self.vocabulary, max(known, default=-1) + 1)
        self._special_single: int = tokenizer.num_special_tokens_to_add(False)
        self._special_pair: int = tokenizer.num_special_tokens_to_add(True)
        #: special tokens before a text and behind it; and whether that is where all of them are
        self.frame = _frame_of(tokenizer.encode("a"))
        self._wraps = self.frame.before + self.frame.behind == self._special_single

    # --- for APIs ----------------------------------------------------------------------------------------------------

    def count(self, text: str, *, add_special_tokens: bool = True) -> int:
        """See ``TextTokenizer``."""
        check_unicode(text)
        return len(self._encode([text], add_special_tokens)[0].ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Encoded:
        """See ``TextTokenizer``."""
        check_unicode(text)
        try:
            found = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except Exception as error:
            raise _failed(error) from error
        return Encoded(found.ids, found.tokens, found.offsets, [bool(one) for one in found.special_tokens_mask])

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See ``TextTokenizer``."""
        self.check_ids(ids, self.vocabulary)
        try:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))
        except Exception as error:
            raise _failed(error) from error

    # --- for the model -----------------------------------------------------------------------------------------------

    @staticmethod
    def check_ids(ids: Sequence[int], vocabulary: int) -> None:
        """Refuse ids that a vocabulary does not have.

        Raises:
            TextError: with the first of them.
        """
        if min(ids, default=0) < 0 or max(ids, default=0) >= vocabulary:
            wrong = next(one for one in ids if not 0 <= one < vocabulary)
            raise TextError(
                f"the token id {wrong} is not in the model's vocabulary, whose ids are from 0 to {vocabulary - 1}; "
                f"it is one of another tokenizer: {_SEND_TEXT}",
                Fault.TOKEN_ID,
                limit=vocabulary,
            )

    def id_of(self, token: str) -> int | None:
        """The id of a token; None if there is none."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def length_of_prompt(self, prompt: str) -> int:
        """How many of a text's first tokens are a prompt's: its own, and the special tokens before them."""
        found = self._tokenizer.encode(prompt)
        ids, special = list(found.ids), list(found.special_tokens_mask)
        while ids and special[-1]:
            ids.pop()
            special.pop()
        return len(ids)

    def read(self, texts: Sequence[str | tuple[str, str]], *, special: bool, limit: int) -> list[Encoding]:
        """The tokens of texts of valid Unicode, one after the other, in the calling thread without the GIL.

        Args:
            texts: strings, or pairs of them.
            special: whether they get special tokens.
            limit: of tokens. Of a text that is far longer only the beginning is read, and still gives more.

        Raises:
            TextError: the tokenizer failed; it may be because of any of the texts.
        """
        most = _most_characters(limit)
        if all([len(text) <= most if type(text) is str else _characters(text) <= most for text in texts]):
            return self._encode(texts, special)
        short = [text if _characters(text) <= most else _beginning(text, most) for text in texts]
        found = self._encode(short, special)
        for at, (text, given) in enumerate(zip(texts, short, strict=True)):
            characters = most
            # Twice the limit: what is left of a word that was cut in two has an influence on its neighbours at most.
            while given is not text and len(found[at].ids) < 2 * limit:
                characters *= 8
                given = text if _characters(text) <= characters else _beginning(text, characters)
                [found[at]] = self._encode([given], special)
        return found

    def ids_of(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """The ids of the tokens of short texts of valid Unicode, as ``read`` reads them.

        Args:
            texts: some, which are read as a whole.
            special: whether they get special tokens.

        Raises:
            TextError: the tokenizer failed.
        """
        return [tokens.ids for tokens in self._encode(texts, special)]

    def cut(self, text: str | tuple[str, str], read: list[int], *, special: bool, limit: int, left: bool) -> Tokens:
        """The tokens of a text that is too long, cut to the limit: the longer one of a pair first.

        Args:
            text: the same as for ``read``.
            read: its tokens from there.
            special: whether it gets special tokens, which are never cut off.
            limit: of all tokens.
            left: whether the beginning is cut off.
        """
        side = "left" if left else "right"
        if isinstance(text, str):
            room = max(0, limit - (self._special_single if special else 0))
            # Of a text that was not read to its end, the end is not known.
            if (self._wraps or not special) and (not left or _characters(text) <= _most_characters(limit)):
                return (self.frame if special else NO_FRAME).cut(read, limit, left=left), None
            first = self._part(text, room, left)
            first.truncate(room, 0, side)
            second = None
        else:
            room = max(0, limit - (self._special_pair if special else 0))
            first, second = self._part(text[0], room, left), self._part(text[1], room, left)
            lengths = _longest_first(len(first.ids), len(second.ids), room)
            first.truncate(lengths[0], 0, side)
            second.truncate(lengths[1], 0, side)
        whole = self._tokenizer.post_process(first, second, add_special_tokens=special)
        return whole.ids, None if second is None else whole.type_ids

    def _part(self, text: str, room: int, left: bool) -> Encoding:
        """One of a text's strings, without special tokens; with more tokens than there is room for, if it has them."""
        characters = _most_characters(room)
        while True:
            is_whole = len(text) <= characters
            given = text if is_whole else text[-characters:] if left else text[:characters]
            [found] = self._encode([given], False)
            if is_whole or len(found.ids) >= 2 * room:
                return found
            characters *= 8

    def _encode(self, texts: Sequence[Any], special: bool) -> list[Encoding]:
        try:
            return self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        except Exception as error:
            raise _failed(error) from error


def _frame_of(found: Encoding) -> Frame:
    """The frame of a text of which these are the tokens."""
    ids, tokens, special = found.ids, found.tokens, found.special_tokens_mask
    before = next((at for at, one in enumerate(special) if not one), 0)
    behind = next((at for at, one in enumerate(reversed(special)) if not one), 0)
    return Frame(before, behind, (ids[0], tokens[0]) if before else None, (ids[-1], tokens[-1]) if behind else None)


def check_unicode(text: str) -> None:
    """Refuse a string that no bytes of UTF-8 are.

    Raises:
        TextError: it has a surrogate.
    """
    if text.isascii():  # of which the string knows it
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(
            f"the text is no valid Unicode: it has the surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}",
            Fault.UNICODE,
        ) from None


def _most_characters(limit: int) -> int:
    """Characters of a text that are read at first."""
    return max(_SHORT_CHARACTERS, _CHARACTERS_PER_TOKEN * limit)


def _characters(text: str | tuple[str, str]) -> int:
    return len(text) if isinstance(text, str) else max(len(text[0]), len(text[1]))


def _beginning(text: str | tuple[str, str], characters: int) -> str | tuple[str, str]:
    return text[:characters] if isinstance(text, str) else (text[0][:characters], text[1][:characters])


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens two strings keep, if the longer one is cut until both are equally long."""
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    if shorter > room // 2:
        shorter, longer = room // 2, room - room // 2
    else:
        longer = room - shorter
    return (shorter, longer) if first <= second else (longer, shorter)


def _failed(error: Exception) -> TextError:
    return TextError(f"tokenizer error: {one_line(error, 200)}", Fault.TOKENIZER)
