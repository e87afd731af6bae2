"""Names of classes, which the classification extension puts behind their numbers: a text file with one on each line.

As in Triton, line N names class N - 1, a class without a line or with an empty one has no name, and the file is read
once, when its version is loaded. Carriage returns at the ends of lines, which Triton keeps, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from toutates.models.config.settings import CONFIG_NAME, ModelSettings
from toutates.models.config.small_file import read_small_file
from toutates.protocol.infer_response import MAX_CLASSIFIED_ELEMENTS
from toutates.protocol.signature import Signature
from toutates.system.errors import ConfigurationError

__all__ = ["Labels", "read_labels", "shortfalls"]

_MAX_FILE_BYTES: Final = 2**24
#: One request may ask for a million labels.
_MAX_LABEL_BYTES: Final = 1_024


class Labels:
    """The labels of one output, kept as the file has them: its bytes, and 8 bytes for each line.

    Args:
        data: lines of UTF-8.
    """

    __slots__ = ("_data", "_ends")

    def __init__(self, data: bytes) -> None:
        self._data = data if data.endswith(b"\n") or not data else data + b"\n"
        ends = np.flatnonzero(np.frombuffer(self._data, np.uint8) == ord("\n"))
        #: of the lines; before the first one, and behind the last for classes without a label, is an empty one
        self._ends = np.concatenate(([-1], ends, [len(self._data)]))

    def __len__(self) -> int:
        return len(self._ends) - 2

    @property
    def longest(self) -> int:
        """Bytes of the longest line."""
        return int(np.diff(self._ends[:-1]).max(initial=1)) - 1

    def of(self, numbers: Sequence[int]) -> list[str]:
        """The labels of classes, by their numbers from 0; "" for those that have none."""
        lines = np.minimum(np.asarray(numbers, np.int64), len(self)) + 1
        starts, stops = self._ends[lines - 1] + 1, self._ends[lines]
        return [
            self._data[start:stop].decode().removesuffix("\r")
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]


def read_labels(settings: ModelSettings, signature: Signature, model_dir: Path, source: Path) -> Mapping[int, Labels]:
    """The labels of a version's outputs, by the index of the output. Blocks.

    Args:
        settings: of the version.
        signature: of the same; outputs that are not offered are left out.
        model_dir: where the files are.
        source: the configuration to name in errors.

    Raises:
        ConfigurationError: a file is missing, not UTF-8, or too large, or one of its lines is too long.
    """
    return MappingProxyType(
        {
            at: _read(model_dir / settings.labels[output.name], output.name, source)
            for at, output in enumerate(signature.outputs)
            if output.name in settings.labels
        }
    )


def _read(path: Path, output: str, source: Path) -> Labels:
    key = f"labels.{output}" if source.name == CONFIG_NAME else f"output '{output}' label_filename"

    def refused(problem: str, remedy: str) -> ConfigurationError:
        # Triton's words, at the beginning.
        text = f"failed to open text file for read '{path}': {problem}"
        return ConfigurationError(text, source=source, key=key, remedy=remedy)

    try:
        data = read_small_file(path, _MAX_FILE_BYTES)
    except ConfigurationError as error:
        raise refused(error.problem, "put a text file there with one label on each line") from error
    if data is None:
        raise refused("No such file or directory", "put the file there, or leave the output without labels")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refused(f"line {line}: is not UTF-8", "save it as UTF-8") from error
    labels = Labels(data)
    if len(labels) > MAX_CLASSIFIED_ELEMENTS:
        problem = f"it has {len(labels)} lines, and no more than {MAX_CLASSIFIED_ELEMENTS} values can be classified"
        raise refused(problem, "keep one line for each class")
    if labels.longest > _MAX_LABEL_BYTES:
        raise refused(f"it has a line of {labels.longest} bytes", f"write labels of at most {_MAX_LABEL_BYTES}")
    return labels


def shortfalls(labels: Mapping[int, Labels], signature: Signature, settings: ModelSettings, source: Path) -> list[str]:
    """A sentence for each output of fixed size that has another number of values than labels."""
    sentences = []
    for at, own in labels.items():
        output = signature.outputs[at]
        if -1 not in output.shape and prod(output.shape) != len(own):
            file = settings.labels[output.name]
            sentences.append(
                f"'{source}': output '{output.name}' has {prod(output.shape)} values, and '{file}' {len(own)} labels"
            )
    return sentences
