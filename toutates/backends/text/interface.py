"""What an API needs of a text model: what it is, its tokenizer, and one call that computes texts.

    found = find_text_model(table, "minilm:query")        a model by its name, and the prompt that an alias names
    found.model.compute(texts, options, on_done)          raises what can be seen at once
    on_done(TextResult)                                   once, in any thread: an array per text, or an error

A text is a string, a pair of strings, or the ids of its tokens. Texts of all callers share batches, and clients that
send a model BYTES over gRPC or REST share them as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from toutates.engine.result import Timing
from toutates.models.table import ModelTable, ServedVersion
from toutates.system.errors import InvalidRequest, RequestError, UnknownModel

__all__ = [
    "DEFAULT_OPTIONS",
    "MOST_CHARACTERS_HERE",
    "Encoded",
    "Fault",
    "Float32",
    "FoundText",
    "Scores",
    "SparseVector",
    "Task",
    "Text",
    "TextError",
    "TextInfo",
    "TextModel",
    "TextOptions",
    "TextResult",
    "TextTimes",
    "TextTokenizer",
    "TextsHere",
    "VectorForm",
    "find_text_model",
    "text_models",
    "text_version",
    "without_prompt",
]

Float32 = npt.NDArray[np.float32]

#: Characters of texts that a worker may read and run itself, where that is known to be quick. They are half a
#: millisecond of work mostly, and 8 ms at worst, of words that are as long as a tokenizer takes them and not known.
MOST_CHARACTERS_HERE: Final = 1_024

#: A text: a string; two strings, for models that read pairs, the query first; or ids of tokens, with the special ones
#: around them, as the model's tokenizer makes them: they are computed as they are, and no prompt is put before them.
Text = str | tuple[str, str] | Sequence[int]


class Task(Enum):
    """What a model makes of a text."""

    EMBED = "embed"
    #: one score for a pair
    RERANK = "rerank"
    #: one score for each label, of a text or of a pair
    CLASSIFY = "classify"


class VectorForm(Enum):
    """What an embedding is."""

    #: one vector [dimensions] for a text
    DENSE = "dense"
    #: one vector for each token, [tokens, dimensions], as ColBERT has them
    MULTI = "multi"
    #: weights of the tokens of the vocabulary, most of them zero, as SPLADE has them
    SPARSE = "sparse"


class Scores(Enum):
    """What becomes of a model's logits."""

    #: what the folder says, which is what sentence-transformers returns
    AS_CONFIGURED = "configured"
    #: the logits themselves
    RAW = "raw"
    #: sigmoid where there is one label or labels do not exclude each other, else softmax
    PROBABILITIES = "probabilities"
    #: the one of the two that is named
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


class Fault(Enum):
    """Why a text, or an option, is refused."""

    #: of the wrong kind for the model: one string where it needs a pair, or a task that it does not have
    WRONG_KIND = "wrong_kind"
    #: more tokens than the model takes, and they are not to be cut
    TOO_LONG = "too_long"
    #: no tokens at all
    EMPTY = "empty"
    #: a string that is no valid Unicode, such as a lone surrogate, or bytes that are no UTF-8
    UNICODE = "unicode"
    #: an id that the vocabulary does not have, or ids that are not of the model's own tokenizer
    TOKEN_ID = "token_id"
    #: a prompt that the model does not have, or a prompt for ids of tokens
    PROMPT = "prompt"
    #: more dimensions than the vector has, or none
    DIMENSIONS = "dimensions"
    #: the tokenizer failed
    TOKENIZER = "tokenizer"
    #: a score is not a number
    NAN = "nan"


class TextError(InvalidRequest):
    """A text, or an option, is refused.

    Args:
        message: for the caller.
        fault: of which kind.
        index: of the text, from 0; None where no single text is at fault.
        tokens: how many the text has, where that is the fault; at least so many, if it was not read to its end.
        limit: what they were held against.
    """

    def __init__(
        self, message: str, fault: Fault, *, index: int | None = None, tokens: int = 0, limit: int = 0
    ) -> None:
        super().__init__(message)
        self.fault, self.index, self.tokens, self.limit = fault, index, tokens, limit


@dataclass(frozen=True, slots=True)
class TextInfo:
    """What a text model is.

    Attributes:
        task: see ``Task``.
        form: of embeddings; DENSE for the other tasks.
        max_tokens: of a text, or of a pair together, the special tokens included.
        dimensions: of a vector; the size of the vocabulary for sparse ones; the number of labels for the other tasks.
        vocabulary: ids of tokens are below this.
        pooling: the modes, as sentence-transformers names them, joined by ``+``; "" where there is none.
        normalized: whether the folder has vectors normalized where a request does not say.
        similarity: ``cosine``, ``dot``, ``euclidean`` or ``manhattan``.
        prompts: by name, the text that is put before an input.
        default_prompt: name of the one that is used where a request names none; "" for none.
        labels: of classes, by index; () for embeddings.
        truncate: whether texts that are too long are cut where a request does not say; else they are refused.
        datatype: of the graph's weights as far as it is known, such as ``float32``.
        model_type: of config.json, such as ``bert``; "" if unknown.
        max_batch_tokens: padded tokens of one batch at most.
        max_texts: that may be under way in the model.
    """

    task: Task
    form: VectorForm
    max_tokens: int
    dimensions: int
    vocabulary: int
    pooling: str = ""
    normalized: bool = False
    similarity: str = "cosine"
    prompts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default_prompt: str = ""
    labels: tuple[str, ...] = ()
    truncate: bool = True
    datatype: str = "float32"
    model_type: str = ""
    max_batch_tokens: int = 1_024
    max_texts: int = 4_096


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How texts are computed. Make one per kind of request, not per text.

    Attributes:
        truncate: whether a text that is too long is cut; None for as the model is configured.
        truncate_left: whether its beginning is cut off; None for as the tokenizer's configuration says.
        max_tokens: of a text, where that is fewer than the model takes; None for the model's.
        prompt: name of the prompt; "" for none, None for the model's default.
        normalize: whether vectors have length 1; None for as the folder says.
        dimensions: values that are left of a vector, cut before it is normalized; None for all.
        token_vectors: whether every token's vector is wanted in place of the pooled one, [tokens, dimensions], special
            tokens included, not normalized.
        add_special_tokens: whether strings get the tokenizer's special tokens.
        scores: of RERANK and CLASSIFY.
    """

    truncate: bool | None = None
    truncate_left: bool | None = None
    max_tokens: int | None = None
    prompt: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    token_vectors: bool = False
    add_special_tokens: bool = True
    scores: Scores = Scores.AS_CONFIGURED


DEFAULT_OPTIONS: Final = TextOptions()


@dataclass(frozen=True, slots=True)
class SparseVector:
    """The weights of a sparse embedding that are not zero.

    Attributes:
        indices: int32 [n], ascending: ids of tokens.
        values: float32 [n].
        size: of the whole vector, zeros included.
    """

    indices: npt.NDArray[np.int32]
    values: Float32
    size: int


@dataclass(slots=True)
class TextTimes:
    """How long the parts of a request have taken, nanoseconds; each is the mean over its texts.

    Attributes:
        tokenizing_ns: reading a text into tokens.
        queue_ns: all of the time that it waited.
        inference_ns: of its batch.
    """

    tokenizing_ns: int = 0
    queue_ns: int = 0
    inference_ns: int = 0


@dataclass(slots=True)
class TextResult:
    """What has become of the texts of one call. Either ``error`` is None, or nothing else counts.

    Attributes:
        vectors: one for each text, in their order: float32 [dimensions] for DENSE, [tokens, dimensions] for MULTI and
            for ``token_vectors``, float32 [labels] for RERANK and CLASSIFY; a ``SparseVector`` for SPARSE. They are
            read only and may be kept.
        tokens: of each text as it was computed: prompt and special tokens included, what was cut off left out.
        error: why there is no answer: a ``TextError`` says which text is wrong.
        times: see ``TextTimes``.
        timing: of the batch that was the last of the texts; None where there is none.
    """

    vectors: Sequence[Float32 | SparseVector] = ()
    tokens: Sequence[int] = ()
    error: RequestError | None = None
    times: TextTimes = field(default_factory=TextTimes)
    timing: Timing | None = None


@dataclass(slots=True)
class TextsHere:
    """Texts that were computed at once, in the thread that asked for it.

    Attributes:
        vectors: of each of the first texts that were given, float32 [dimensions]; None for one that is to be added.
        tokens: of each of these.
        times: of each of these.
        timing: of their batch.
    """

    vectors: Sequence[Float32 | None]
    tokens: Sequence[int]
    times: TextTimes
    timing: Timing


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a text.

    Attributes:
        ids: of the tokens.
        tokens: their strings in the vocabulary.
        offsets: where each begins and ends in the text, in characters; (0, 0) for special tokens.
        special: whether each is a special token.
    """

    ids: Sequence[int]
    tokens: Sequence[str]
    offsets: Sequence[tuple[int, int]]
    special: Sequence[bool]


class TextTokenizer(Protocol):
    """A model's tokenizer. Any thread may use it. A long text takes long: call it beside a worker, not in it."""

    def count(self, text: str, *, add_special_tokens: bool = True) -> int:
        """Number of tokens, not cut.

        Raises:
            TextError: the text is no valid Unicode.
        """
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Encoded:
        """The tokens of a text, not cut. Put a prompt before it yourself, if one is wanted.

        Raises:
            TextError: the text is no valid Unicode.
        """
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of tokens.

        Raises:
            TextError: the vocabulary does not have an id.
        """
        ...


class TextModel(ABC):
    """A served version of a text model; also the ``Servable`` that the table of models has of it.

    Attributes:
        may_compute_here: whether ``compute_here`` ever computes anything.
    """

    may_compute_here: bool = False

    @property
    @abstractmethod
    def info(self) -> TextInfo:
        """What it is. Always the same object."""

    @property
    @abstractmethod
    def tokenizer(self) -> TextTokenizer:
        """Its tokenizer."""

    @abstractmethod
    def add(
        self,
        texts: Sequence[Text],
        options: TextOptions,
        on_done: Callable[[TextResult], object],
        is_wanted: Callable[[int], bool] = lambda by_ns: True,
        arrived_ns: int | None = None,
        caller: object = None,
    ) -> None:
        """Have texts computed, from the next ``commit`` on. Does not block; any thread may call it, best in the same
        round in which it took the model out of the table.

        Strings are mostly read into tokens in another thread, so most of what is wrong with a text comes with the
        result. An empty string is a text like others, of special tokens alone: an API that does not take it refuses it
        itself.

        Args:
            texts: at least one.
            options: the same for all of them.
            on_done: takes the result, once, in any thread, also after a refusal by ``TextResult.error``. It must not
                block, and is not called where this raises.
            is_wanted: whether somebody still waits for the answer at a time, monotonic nanoseconds. Called in any
                thread. The texts of a request that nobody waits for are not computed; its error is then ``TooLate``.
            arrived_ns: when the request came, monotonic; None for now. The same of requests that came together, which
                are then counted together.
            caller: whose they are: callers take turns. Compared with others; None for all that nobody knows.

        Raises:
            TextError: an option, or the kind of the texts, does not fit the model.
            Overloaded: too many texts are under way.
            ModelNotReady: the version is being unloaded: look into the table again.
        """

    @abstractmethod
    def commit(self) -> None:
        """Let run what was added so far. What is quick may be run by the calling thread."""

    def compute_here(self, texts: Sequence[str], options: TextOptions, arrived_ns: int) -> TextsHere | None:
        """Compute short texts of different requests in the calling thread, as ``add`` and ``commit`` would, for less.

        Args:
            texts: one of each request.
            options: the same for all of them.
            arrived_ns: when the requests came, monotonic.

        Returns:
            What was computed of the first ones, as many as may keep the thread busy; the rest may be given again. None
            where texts have to be added, because runs are not known to be quick, or others wait.
        """
        return None

    def compute(
        self,
        texts: Sequence[Text],
        options: TextOptions,
        on_done: Callable[[TextResult], object],
        is_wanted: Callable[[int], bool] = lambda by_ns: True,
    ) -> None:
        """``add`` and ``commit``."""
        self.add(texts, options, on_done, is_wanted)
        self.commit()

    def check(self, options: TextOptions) -> None:
        """Refuse options that the model cannot follow; ``add`` does so too.

        Raises:
            TextError: it cannot.
        """
        info = self.info
        if options.prompt and options.prompt not in info.prompts:
            known = ", ".join(sorted(info.prompts)[:20]) or "none"
            raise TextError(f"the model has no prompt '{options.prompt[:100]}'; it has: {known}", Fault.PROMPT)
        if options.token_vectors and info.task is not Task.EMBED:
            raise TextError("the model has no vectors of tokens; it computes scores", Fault.WRONG_KIND)
        if options.dimensions is not None:
            if info.task is not Task.EMBED or info.form is VectorForm.SPARSE:
                raise TextError("only dense vectors can be cut to some dimensions", Fault.DIMENSIONS)
            if not 1 <= options.dimensions <= info.dimensions:
                raise TextError(
                    f"dimensions must be from 1 to {info.dimensions}, got {options.dimensions}", Fault.DIMENSIONS
                )


@dataclass(frozen=True, slots=True)
class FoundText:
    """A text model in the table.

    Attributes:
        name: of the model.
        version: its number.
        model: what computes.
        prompt: that an alias such as ``NAME:query`` names; None where there is none.
        loaded_s: when it was loaded, seconds since 1970.
    """

    name: str
    version: int
    model: TextModel
    prompt: str | None = None
    loaded_s: float = 0.0


def text_models(table: ModelTable) -> list[FoundText]:
    """The newest version of every text model, by name, where it can answer."""
    newest: dict[str, FoundText] = {}
    for served in table.served():  # by name and number
        model = served.servable
        if isinstance(model, TextModel):
            newest[served.model] = FoundText(served.model, served.number, model, loaded_s=served.loaded_s)
    return list(newest.values())


def without_prompt(table: ModelTable, name: str) -> tuple[str, str]:
    """The model that a name is of, and its prompt; "" for none."""
    if not table.has_name(spelled := table.spelling(name)):
        model, _, prompt = name.rpartition(":")
        if table.has_name(model := table.spelling(model)):
            return model, prompt
    return spelled, ""


def find_text_model(table: ModelTable, name: str) -> FoundText:
    """A text model by its name, or by its name and a prompt's, ``NAME:PROMPT``.

    Raises:
        UnknownModel: there is none of the name, or it is no text model.
        ModelNotReady: it cannot answer now.
        TextError: it has no such prompt.
    """
    model, prompt = without_prompt(table, name)
    found = text_version(table.find(model, ""))
    if prompt:
        found.model.check(TextOptions(prompt=prompt))
    return replace(found, prompt=prompt or None)


def text_version(served: ServedVersion) -> FoundText:
    """A version as a text model.

    Raises:
        UnknownModel: it is none.
    """
    model = served.servable
    if not isinstance(model, TextModel):
        raise UnknownModel(f"the model '{served.model}' is no text model")
    return FoundText(served.model, served.number, model, loaded_s=served.loaded_s)
