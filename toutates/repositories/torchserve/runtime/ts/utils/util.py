"""Helpers of handlers: labels of classes, and the error that has a status."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["PredictionException", "list_classes_from_module", "load_label_mapping", "map_class_to_label"]


class PredictionException(Exception):
    """A batch that is answered with a status and a text of the handler's own."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        self.message = message
        self.error_code = error_code
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """The classes that a module defines itself, those of ``parent_class`` alone if it is given."""
    classes = [one for _, one in inspect.getmembers(module, inspect.isclass) if one.__module__ == module.__name__]
    return classes if parent_class is None else [one for one in classes if issubclass(one, parent_class)]


def load_label_mapping(mapping_file_path: str) -> dict[str, Any]:
    """Read index_to_name.json; {} if it is not there.

    Raises:
        Exception: a label is neither a text nor a list.
    """
    file = Path(mapping_file_path)
    if not file.is_file():
        return {}
    mapping = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(mapping, dict) and "object_type_names" in mapping:
        mapping = {str(key): value for key, value in enumerate(mapping["object_type_names"])}
    if not isinstance(mapping, dict):
        raise Exception('index_to_name mapping should be in "class":"label" json format')
    labels: dict[str, Any] = {}
    for key, value in mapping.items():
        if not isinstance(value, str | list):
            raise Exception(f"labels in mapping must be either str or [str], and not {type(value)}")
        labels[key] = value[-1] if isinstance(value, list) else value
    return labels


def map_class_to_label(
    probs: Sequence[Sequence[float]],
    mapping: Mapping[str, Any] | None = None,
    lbl_classes: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, float]]:
    """Per row the probability by label; by the class's number where there is no label."""
    classes = lbl_classes if lbl_classes is not None else [list(range(len(row))) for row in probs]
    labels = mapping or {}
    return [
        {labels.get(str(one), str(one)): value for one, value in zip(numbers, row, strict=False)}
        for numbers, row in zip(classes, probs, strict=True)
    ]
