"""What Magika does around its model: bytes of a file to numbers, and scores to a label.

Written again from the package's behaviour and its two JSON files instead of calling its private methods, because those
want an ONNX Runtime session of their own, which is what the server is there to spare its clients.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Features", "Rules"]

Features = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rules:
    """Magika's preparation and its verdict, without its model.

    Attributes:
        beg_size: bytes of the file's beginning that the model sees.
        end_size: bytes of its end.
        block_size: bytes read from either end, before white space is stripped.
        min_size: files (or what is left of their beginning) shorter than this are not worth asking the model.
        padding: the number that stands for "no byte here".
        labels: what each column of the model's output stands for.
        thresholds: the score from which a label is trusted, where it is not ``default_threshold``.
        overwrite: labels of the model that are shown as others.
        text_labels: labels whose files are text, for the generic answer to a low score.
    """

    beg_size: int
    end_size: int
    block_size: int
    min_size: int
    padding: int
    labels: tuple[str, ...]
    thresholds: dict[str, float]
    default_threshold: float
    overwrite: dict[str, str]
    text_labels: frozenset[str]

    @classmethod
    def load(cls, model_folder: Path) -> Rules:
        """Read the rules that belong to a model of the installed package.

        Args:
            model_folder: the folder with ``config.min.json``, two levels below the package's own.

        Raises:
            ValueError: the model wants features (of a file's middle, or at fixed offsets) that no release used so far.
        """
        config: dict[str, Any] = json.loads((model_folder / "config.min.json").read_text(encoding="utf-8"))
        if config["mid_size"] or config["use_inputs_at_offsets"]:
            raise ValueError(f"{model_folder.name} wants features other than those of a file's beginning and end")
        kinds_path = model_folder.parent.parent / "config" / "content_types_kb.min.json"
        kinds: dict[str, Any] = json.loads(kinds_path.read_text(encoding="utf-8"))
        return cls(
            beg_size=config["beg_size"],
            end_size=config["end_size"],
            block_size=config["block_size"],
            min_size=config["min_file_size_for_dl"],
            padding=config["padding_token"],
            labels=tuple(config["target_labels_space"]),
            thresholds=config["thresholds"],
            default_threshold=config["medium_confidence_threshold"],
            overwrite=config["overwrite_map"],
            text_labels=frozenset(label for label, kind in kinds.items() if kind["is_text"]),
        )

    def read(self, path: Path) -> Features | str:
        """The model's input for one file, ``int32[beg_size + end_size]``; a label where there is too little to ask.

        Raises:
            OSError: the file cannot be read.
        """
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                return "empty"
            block = min(size, self.block_size)
            file.seek(0)
            head = file.read(block)
            file.seek(size - block)
            tail = file.read(block)

        beginning, end = head.lstrip()[: self.beg_size], tail.rstrip()[-self.end_size :]
        if len(beginning) < self.min_size:
            try:
                head.decode()
            except UnicodeDecodeError:
                return "unknown"
            return "txt"

        # The beginning is padded behind, the end is padded before: both keep the file's edge at a fixed place.
        features = np.full(self.beg_size + self.end_size, self.padding, dtype=np.int32)
        features[: len(beginning)] = np.frombuffer(beginning, dtype=np.uint8)
        features[len(features) - len(end) :] = np.frombuffer(end, dtype=np.uint8)
        return features

    def label(self, scores: npt.NDArray[np.float32]) -> str:
        """The label for one row of the model's output, ``float32[len(labels)]``.

        A score below its threshold is answered with a generic label: the model is still trusted to tell text from
        binary.
        """
        best = int(scores.argmax())
        label = self.labels[best]
        shown = self.overwrite.get(label, label)
        if float(scores[best]) >= self.thresholds.get(label, self.default_threshold):
            return shown
        return "txt" if shown in self.text_labels else "unknown"
