"""Takes the server's paths out of text that goes to clients, such as the reason of a load that failed.

Such texts come from everywhere: errors of the system, of ONNX Runtime, of a model's own code. So they are cleaned where
they leave for clients; the log has them as they are. What is left of a path is what a client can use: within a model's
folder the path from there, elsewhere the name of the file.
"""

from __future__ import annotations

import os
import re
from typing import Final

from toutates.system.text import writable

__all__ = ["without_paths"]

#: Before a path that stands by itself. Else it is the end of a URL, or of a path that does not begin at the root.
_BEGINS: Final = r"(?<![\w.~/\\\]}%-])"
#: What a path ends at that has no quotes around it.
_ENDS: Final = r"\s'\"`,;:()\[\]{}<>|"


def without_paths(text: str, *folders: str | os.PathLike[str]) -> str:
    """A text without paths of the server's file system, and writable (``system.text``).

    A path is what begins with an entry of the root directory. So names of a graph's nodes, which often begin with a
    slash too (``/encoder/MatMul``), stay, unless the root has such an entry.

    Args:
        text: such as an error.
        folders: whose files are named by the path within them, and they themselves by their last name.
    """
    text = writable(text)
    if "/" not in text:
        return text
    for folder in sorted({os.fspath(folder).rstrip("/") for folder in folders}, key=len, reverse=True):
        if "/" in folder:
            text = _without_folder(text, folder)
    return _without_other_paths(text)


def _without_folder(text: str, folder: str) -> str:
    inside = rf"{_BEGINS}{re.escape(folder)}/+(?=[^{_ENDS}])"
    itself = rf"{_BEGINS}{re.escape(folder)}(?![\w-]|\.\w)"
    return re.sub(itself, lambda _: _last(folder), re.sub(inside, "", text))


def _without_other_paths(text: str) -> str:
    try:
        # The paths themselves are not looked up: a text may have them from a client, who would learn whether they
        # exist, and a file system may hang.
        entries = os.listdir("/")
    except OSError:
        return text
    first = "|".join(re.escape(entry) for entry in sorted(entries, key=len, reverse=True))
    if not first:
        return text
    path = rf"/(?:{first})(?=[/{_ENDS}]|[.!?]?$|[.!?]\s)"
    quoted = "|".join(rf"(?<={quote})(?:file://)?{path}[^{quote}\n]*(?={quote})" for quote in "'\"`")
    bare = rf"(?:file://|{_BEGINS}){path}[^{_ENDS}]*"
    return re.sub(rf"{quoted}|{bare}", lambda found: _last(found[0]), text, flags=re.MULTILINE)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
