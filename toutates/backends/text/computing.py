"""From a batch of texts' tokens to what their requests want: the encoder, the steps behind it, and the last ones.

The last ones are what a request may choose: the number of dimensions, whether vectors are normalized, what becomes of
logits. Texts that share a batch may have chosen differently.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from toutates.backends.text.encoder import Encoder, Table
from toutates.backends.text.folder import TextFolder
from toutates.backends.text.interface import Fault, Float32, SparseVector, Task, TextError, VectorForm
from toutates.backends.text.steps import Features, Step, normalized
from toutates.backends.text.work import Ids, Row, Settled

__all__ = ["Computing"]


class Computing:
    """What computes the batches of a version. Any number of threads may use it at once.

    Args:
        folder: of the version.
        encoder: its own.
        skip_ids: tokens whose vectors a document leaves out.
    """

    def __init__(self, folder: TextFolder, encoder: Encoder, skip_ids: Sequence[int] = ()) -> None:
        self._folder = folder
        self._encoder = encoder
        self._skip_ids = np.array(sorted(skip_ids), np.int64)
        # The last normalisation is a request's choice.
        steps = folder.steps[:-1] if folder.normalizes else folder.steps
        self._steps: tuple[Step, ...] = steps
        if getattr(encoder, "is_pooled", False):  # all that the folder declares but the last is inside of the graph
            self._steps = ()
        #: of a table behind which there is nothing but the last normalisation
        self._sums = encoder.sums if isinstance(encoder, Table) and not self._steps else None
        self._wants_prompts = any(not getattr(step, "with_prompt", True) for step in self._steps)

    @property
    def pads(self) -> bool:
        """Whether what a text costs grows with the longest one of its batch."""
        return self._encoder.pads

    @property
    def on_cpu(self) -> bool:
        """Whether all of a run is on the CPU."""
        return self._encoder.on_cpu

    @property
    def is_table(self) -> bool:
        """Whether texts are means of a table's vectors and no more, as ``means`` computes them."""
        return self._sums is not None

    def means(self, texts: Sequence[Ids], lengths: Sequence[int], settled: Settled) -> Float32:
        """Compute texts of a table, [texts, dimensions].

        Args:
            texts: the ids of the tokens of each, of one at least.
            lengths: how many these are.
            settled: what all of them want; no vectors of tokens.
        """
        assert self._sums is not None
        return _means(self._sums(texts), lengths, settled)

    def run(self, rows: Sequence[Row], length: int) -> list[Float32 | SparseVector | TextError]:
        """Compute a batch; returns what each text gets.

        Args:
            rows: the texts, of one token at least each.
            length: that they are padded to.

        Raises:
            ExecutionFailed: the run failed.
        """
        first = rows[0].context.settled
        is_alike = len(rows) == 1 or all([row.context.settled is first for row in rows])
        if self._sums is not None and is_alike and not first.options.token_vectors:
            return list(_means(self._sums([row.ids for row in rows]), [row.length for row in rows], first))
        features = self._encoder.run(rows, length)
        if self._folder.task is not Task.EMBED:
            return self._scores(rows, features)
        if self._wants_prompts:
            prompts = np.array([row.request.settled.prompt_tokens if row.has_prompt else 0 for row in rows], np.int64)
            features.prompts = prompts if prompts.any() else None
        wants_tokens = [row.request.settled.options.token_vectors for row in rows]
        if self._folder.form is VectorForm.MULTI or all(wants_tokens):
            for step in self._steps:
                if getattr(step, "source", "") == "token_embeddings":
                    step.run(features)
            return [self._token_vectors(row, features, at) for at, row in enumerate(rows)]
        for step in self._steps:
            step.run(features)
        assert features.vectors is not None
        found = self._vectors(rows, features.vectors)
        for at, wanted in enumerate(wants_tokens):
            if wanted:
                found[at] = self._token_vectors(rows[at], features, at)
        return found

    def _vectors(self, rows: Sequence[Row], vectors: Float32) -> list[Float32 | SparseVector | TextError]:
        if self._folder.form is VectorForm.SPARSE:
            return [_sparse(own, row.request.settled) for own, row in zip(vectors, rows, strict=True)]
        first = rows[0].request.settled
        if all(row.request.settled is first for row in rows):
            return list(_finished(vectors, first))
        return [_finished(vectors[at : at + 1], row.request.settled)[0] for at, row in enumerate(rows)]

    def _token_vectors(self, row: Row, features: Features, at: int) -> Float32:
        settled = row.request.settled
        keep = features.mask[at] != 0
        vectors: Float32 = features.tokens[at][keep]
        if settled.options.token_vectors:
            return vectors
        if settled.skips and len(self._skip_ids):
            ids: npt.NDArray[np.int64] = np.asarray(row.ids, np.int64)
            vectors = vectors[~np.isin(ids, self._skip_ids)]
        return _finished(vectors, settled)

    def _scores(self, rows: Sequence[Row], features: Features) -> list[Float32 | SparseVector | TextError]:
        if self._folder.score_tokens is not None:
            yes, no = self._folder.score_tokens
            last = features.tokens[:, -1]
            logits = last[:, yes] - last[:, no] if no is not None else last[:, yes]
            logits = logits[:, None]
        else:
            assert features.vectors is not None
            logits = features.vectors
        found: list[Float32 | SparseVector | TextError] = []
        for own, row in zip(logits, rows, strict=True):
            scores = row.request.settled.activation(own)
            if np.isnan(scores).any():
                found.append(TextError("the model's score is not a number", Fault.NAN, index=row.index))
            else:
                found.append(scores)
        return found


def _means(sums: Float32, lengths: Sequence[int], settled: Settled) -> Float32:
    """What texts get, [texts, dimensions].

    Args:
        sums: of the vectors of their tokens, [texts, dimensions]; they are written over.
        lengths: how many tokens each has.
        settled: what all of them want.
    """
    if not settled.normalize:
        sums /= np.array(lengths, np.float32)[:, None]
    # Of length 1, the sum is the mean.
    return _finished(sums, settled)


def _finished(vectors: Float32, settled: Settled) -> Float32:
    if settled.dimensions is not None:
        vectors = vectors[..., : settled.dimensions]
    return normalized(vectors) if settled.normalize else np.ascontiguousarray(vectors)


def _sparse(vector: Float32, settled: Settled) -> SparseVector:
    if settled.normalize:
        vector = normalized(vector)
    indices = np.flatnonzero(vector)
    return SparseVector(indices.astype(np.int32), vector[indices], len(vector))
