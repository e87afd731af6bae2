"""How the folder of a text model is recognised by the names of its files."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["is_text_folder"]

_MODULES = "modules.json"
_TOKENIZER = frozenset({"tokenizer.json", "config.json"})


def is_text_folder(names: Collection[str]) -> bool:
    """Whether these are the files of a text model: what sentence-transformers saves, or a tokenizer and a config.json.

    Args:
        names: of the files in the folder.
    """
    return _MODULES in names or _TOKENIZER.issubset(names)
