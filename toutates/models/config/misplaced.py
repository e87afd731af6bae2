"""Directories that are given as a model repository and are something else, and files that lie where none is read."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.config.settings import CONFIG_NAME

__all__ = [
    "graphs",
    "loose_configurations",
    "loose_graphs",
    "near_directory",
    "near_name",
    "right_path_for_file",
    "wrong_root",
]

_GRAPH_SUFFIX: Final = ".onnx"
#: The other usual suffix.
_MISNAMED: Final = "config.yml"
#: Names of configurations that are read, or that have an error of their own.
_READ: Final = (PBTXT_NAME, CONFIG_NAME, _MISNAMED)
#: Names that people and editors give a configuration.
_ALIKE: Final = frozenset(
    {"config.prototxt", "config.textproto", "config.pb.txt", "config.txtpb", "config.txt", *_READ}
)
#: Ends of names of copies that are kept on purpose.
_COPIES: Final = ("~", ".bak", ".orig", ".old", ".swp", ".example", ".disabled", ".tmp", ".save")
#: Directories that are looked into for a repository within.
_MAX_LOOKED_INTO: Final = 100


def wrong_root(root: Path) -> str:
    """What a directory is that is no model repository, and which path would be right.

    Args:
        root: the directory.

    Returns:
        Problem and remedy, joined by a semicolon; "" for a directory that may be a repository, empty or not.
    """
    here = Path(os.path.abspath(root))
    if any(_versions(root / name) for name in _directories(root)):
        return ""
    directories = list(_directories(root))
    if _is_number(here.name) and graphs(root) and len(here.parents) > 1:
        return f"is the directory of version {here.name} of the model '{here.parent.name}'; name '{here.parent.parent}'"
    own = [name for name in directories if _is_number(name) and graphs(root / name)]
    if own:
        return (
            f"is the directory of one model, whose version {own[0]} lies in it, and not of a model repository; "
            f"name '{here.parent}'"
        )
    for name in directories[:_MAX_LOOKED_INTO]:
        inner = root / name
        if any(_versions(inner / model) for model in _directories(inner)):
            return f"has no models, but its directory '{name}' has some; name '{here / name}'"
    return ""


def loose_graphs(root: Path) -> list[str]:
    """What is wrong with graphs that lie in the repository's own directory, a sentence with a remedy for each."""
    here = Path(os.path.abspath(root))
    found = []
    for graph in graphs(root):
        stem = graph.removesuffix(_GRAPH_SUFFIX)
        model = stem if stem not in ("model", "") else "NAME"
        found.append(
            f"{here / graph}: lies in no model's directory, and is not served; "
            f"move it to '{here / model / '1' / 'model.onnx'}'"
        )
    return found


def loose_configurations(model: Path, names: Collection[str], versions: Collection[int]) -> list[str]:
    """What is wrong with configurations that lie in a model's directory where none is read, a sentence for each.

    Args:
        model: the model's directory.
        names: of what is in it.
        versions: that are there.
    """
    found = [_look_alike(model / name, PBTXT_NAME) for name in sorted(names) if _is_like(name)]
    for number in versions:
        folder = model / str(number)
        found += [_look_alike(folder / name, CONFIG_NAME) for name in _files(folder) if _is_like(name)]
    for name in (CONFIG_NAME, _MISNAMED):
        if name in names:
            newest = model / str(max(versions, default=1))
            holds = next((one for one in (newest / CONFIG_NAME, newest / _MISNAMED) if os.path.lexists(one)), None)
            remedy = f"remove it, because there is '{holds}'" if holds else f"move it to '{newest / CONFIG_NAME}'"
            found.append(
                f"'{model / name}' is not read, because a {CONFIG_NAME} lies beside its version's files; {remedy}"
            )
    for number in versions:
        if os.path.lexists(own := os.path.join(model, str(number), PBTXT_NAME)):
            holds = model / PBTXT_NAME if PBTXT_NAME in names else None
            remedy = f"remove it, because there is '{holds}'" if holds else f"move it to '{model / PBTXT_NAME}'"
            found.append(
                f"'{own}' is not read, because a {PBTXT_NAME} lies beside the directories of versions; {remedy}"
            )
    return found


def _is_like(name: str) -> bool:
    """Whether a file's name is like that of a configuration, and none that is read, nor a copy that somebody keeps."""
    small = name.lower()
    if name in _READ or not small.startswith("config") or small.endswith(_COPIES):
        return False
    return small in _ALIKE or bool(get_close_matches(small, _READ, n=1, cutoff=0.8))


def _look_alike(path: Path, right: str) -> str:
    name = PBTXT_NAME if "pb" in path.name.lower() or "proto" in path.name.lower() else right
    where = (
        f"beside the directories of versions as {name}" if name == PBTXT_NAME else f"beside the model's file as {name}"
    )
    return f"'{path}' is not read, because of its name; a configuration lies {where}: rename it, or remove it"


def _files(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def right_path_for_file(path: Path) -> str:
    """The remedy where a file is given as the repository."""
    here = Path(os.path.abspath(path))
    if here.suffix == _GRAPH_SUFFIX and _is_number(here.parent.name):
        return f"name '{here.parent.parent.parent}'"
    if here.suffix == _GRAPH_SUFFIX:
        model = here.stem if here.stem != "model" else "NAME"
        return (
            f"serve it alone by 'toutates serve {path}'; "
            f"or move it to '{here.parent / model / '1' / 'model.onnx'}', and name '{here.parent}'"
        )
    return "name the directory that holds one directory per model"


def near_directory(path: Path) -> str:
    """The directory beside a path that does not exist whose name is like it; "" if there is none."""
    here = Path(os.path.abspath(path))
    while not here.parent.is_dir():
        here = here.parent
    near = near_name(here.name, list(_directories(here.parent)))
    return str(here.parent / near) if near else ""


def near_name(name: str, names: Collection[str]) -> str:
    """The name that is most like another one; "" if none is."""
    near = get_close_matches(name, names, n=1)
    return near[0] if near else ""


def _is_number(name: str) -> bool:
    """Whether a directory of this name may be a version."""
    return name.isascii() and name.isdigit() and not name.startswith("0")


def _directories(path: Path) -> Iterator[str]:
    try:
        for name in sorted(os.listdir(path)):
            if not name.startswith(".") and os.path.isdir(path / name):
                yield name
    except OSError:
        return


def _versions(model: Path) -> bool:
    return any(map(_is_number, _directories(model)))


def graphs(path: Path) -> list[str]:
    """Names of the ONNX files in a directory, whether they can be read or not."""
    try:
        return sorted(name for name in os.listdir(path) if name.endswith(_GRAPH_SUFFIX) and not name.startswith("."))
    except OSError:
        return []
