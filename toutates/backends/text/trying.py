"""The first runs of a text model: whether it computes, and whether texts that share a run depend on each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from toutates.backends.differences import differ
from toutates.backends.onnx.graph_file import GraphFile
from toutates.backends.probing import Difference, NoDraw, NotJoined, Verdict, judged
from toutates.backends.text.computing import Computing
from toutates.backends.text.folder import TextFolder
from toutates.backends.text.interface import DEFAULT_OPTIONS, Float32, SparseVector, Task, TextError, TextInfo
from toutates.backends.text.reading import Reader
from toutates.backends.text.steps import ACTIVATIONS
from toutates.backends.text.work import Row, Settled, TextRequest
from toutates.engine.result import Timing
from toutates.system.errors import ModelLoadError, RequestError, anew
from toutates.system.text import text_of

__all__ = ["probe_texts", "try_texts"]

#: By draw, a short text and a longer one.
_TEXTS: Final = (
    ("a text to see that the model computes", "words " * 12),
    ("one", "three other words of a sentence that is not as short as the first one"),
    ("which of them is it", "numbers: 1 22 333 4444 55555, and a question?"),
)


def try_texts(folder: TextFolder, reader: Reader, computing: Computing, info: TextInfo) -> tuple[int, int]:
    """Compute a short text and a longer one together, twice, because the first run also allocates memory.

    Where they do not run together, the short one is computed.

    Returns:
        The dimensions of what the model makes, and how long the second run took, nanoseconds.

    Raises:
        ModelLoadError: it cannot be computed.
    """
    rows = _rows(folder, reader, info, 0)
    length = max(len(row.ids) for row in rows)
    try:
        try:
            computing.run(rows, length)
        except RequestError:
            rows = rows[:1]
            computing.run(rows, length)
        began_ns = time.monotonic_ns()
        found = computing.run(rows, length)
        run_ns = time.monotonic_ns() - began_ns
    except Exception as error:
        raise ModelLoadError(f"the model cannot compute a text: {text_of(error)}") from error
    first = found[0]
    if isinstance(first, TextError):
        raise ModelLoadError(f"the model cannot compute a text: {first}")
    if not isinstance(first, SparseVector):
        return int(first.shape[-1]), run_ns
    return first.size, run_ns


def probe_texts(
    folder: TextFolder, reader: Reader, computing: Computing, info: TextInfo, run_ns: int, says_joined: str
) -> Verdict:
    """Find whether texts that share a run depend on each other, by texts that run together and one by one.

    Args:
        folder, reader, computing, info: of the version.
        run_ns: how long a run of two texts takes, nanoseconds.
        says_joined: see ``probing.probe``.
    """
    graph = folder.graph
    if graph is None:  # a table
        return Verdict()

    def difference(draw: int) -> Difference:
        rows = _rows(folder, reader, info, draw)
        length = max(len(row.ids) for row in rows)
        try:
            apart = [_dense(computing.run([row], length)[0]) for row in rows]
        except RequestError as error:
            raise NoDraw(f"a text does not run: {error}") from None
        try:
            together = [_dense(one) for one in computing.run(rows, length)]
        except RequestError as error:
            raise NotJoined(f"{len(rows)} texts do not run together: {error}") from None
        found = [differ(one[None], [other[None]], 1, "FP32")[0] for one, other in zip(together, apart, strict=True)]
        return Difference(max(found), 0.0, "what it makes of a text")

    return judged(difference, row_ns=run_ns // 2, says_joined=says_joined, facts=lambda: GraphFile(graph).facts())


def _rows(folder: TextFolder, reader: Reader, info: TextInfo, draw: int) -> list[Row]:
    """Texts of a draw with their tokens.

    Raises:
        ModelLoadError: the tokenizer cannot read one.
    """
    settled = Settled(
        options=DEFAULT_OPTIONS,
        special=folder.special,
        limit=info.max_tokens,
        cuts=True,
        left=False,
        prompt="",
        prompt_tokens=0,
        normalize=False,
        dimensions=folder.dimensions,
        activation=ACTIVATIONS["Identity"],
        skips=False,
    )
    texts = list(_TEXTS[draw])
    pairs = [(text, text) for text in texts] if info.task is not Task.EMBED else texts
    request = TextRequest(pairs, settled, _Nobody(), None, lambda by_ns: True, 0, 0)
    read = reader.read([(request, 0, 2)])
    if read.failed:
        raise ModelLoadError(f"the tokenizer cannot read a text: {read.failed[0][1]}")
    return list(read.rows)


def _dense(found: Float32 | SparseVector | TextError) -> Float32:
    """The numbers of a text. Raises what it has failed with."""
    if isinstance(found, TextError):
        raise anew(found)
    if not isinstance(found, SparseVector):
        return np.asarray(found, np.float32)
    whole = np.zeros(found.size, np.float32)
    whole[found.indices] = found.values
    return whole


class _Nobody:
    """Takes what nobody waits for."""

    def finish(self, requests: Sequence[TextRequest], timing: Timing) -> None:
        """See ``Sink``."""
