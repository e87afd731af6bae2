"""What a model's file is that is something else: what a download or a checkout leaves in its place.

Whatever computes a model complains of such a file in words of its own, if at all. So a load that has failed looks at
the beginnings of the version's files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from toutates.models.repository import VersionFolder, belongs_to_graph
from toutates.system.errors import ConfigurationError, ModelLoadError

__all__ = ["MAX_FILES", "explained_by_files", "files_of"]

_LFS: Final = b"version https://git-lfs.github.com/spec/"
#: Bytes that are looked at.
_LOOKED_AT: Final = 512
#: Files of a version that are looked at.
MAX_FILES: Final = 1_000
#: Ends of names of files that hold models or their weights.
_OF_MODELS: Final = (
    ".onnx", ".ort", ".onnx_data", ".data", ".safetensors", ".pt", ".pt2", ".pth", ".bin", ".ubj", ".skops",
)  # fmt: skip
#: Beginnings of such names.
_BEGIN: Final = ("model.", "xgboost.")
#: Files of text models.
_NAMES: Final = frozenset({"config.json", "modules.json", "tokenizer.json", "tokenizer_config.json"})
#: Files that are ZIP archives by themselves.
_ZIPPED: Final = (".pt", ".pt2", ".pth", ".bin", ".skops", ".zip", ".npz")


@contextmanager
def explained_by_files(version: VersionFolder) -> Iterator[None]:
    """A block that loads a version. If one of its files is something else than its name says, the error says so.

    Args:
        version: what a repository has of it.

    Raises:
        ConfigurationError, ModelLoadError: the block's, or one that names the file.
    """
    try:
        yield
    except ConfigurationError as error:
        path = error.source
        if path is not None and _is_of_model(path, version) and (taken := _what_it_is(path)):
            raise ModelLoadError(f"'{path}' {taken}") from error
        raise
    except ModelLoadError as error:
        if taken := _what_it_is(version.model_path) or _if_empty(version.model_path):
            raise ModelLoadError(f"'{version.model_path}' {taken}") from error
        for path in files_of(version):
            is_of_model = _is_of_model(path, version)
            if taken := _what_it_is(path, is_of_model=is_of_model):
                said = f"'{path}' {taken}"
                raise ModelLoadError(said if is_of_model else f"{error}; {said}") from error
        raise


def files_of(version: VersionFolder) -> Iterator[Path]:
    """The files of a version, at most ``MAX_FILES`` of them; of one that is a file, those that belong to it."""
    if version.is_file:
        graph = version.model_path.name
        found = (path for path in version.path.glob("*") if belongs_to_graph(path.name, graph))
    else:
        found = (path for path in version.path.rglob("*") if path.is_file())
    return islice(found, MAX_FILES)


def _is_of_model(path: Path, version: VersionFolder) -> bool:
    name = path.name
    return path == version.model_path or name.startswith(_BEGIN) or name in _NAMES or name.endswith(_OF_MODELS)


def _what_it_is(path: Path, *, is_of_model: bool = True) -> str:
    """What is in a file instead, and what to do, to end a sentence that begins with its name; "" if nothing says it.

    Args:
        path: of the file.
        is_of_model: whether it holds a model or its weights; else only a pointer is told, because other files may be
            anything.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            head = os.pread(descriptor, _LOOKED_AT, 0)
        finally:
            os.close(descriptor)
    except OSError:
        return ""
    if head.startswith(_LFS):
        return "is a pointer of Git LFS and not the file itself; run `git lfs pull` where the repository was cloned"
    if not is_of_model:
        return ""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "is an HTML page and not the model, as a download gives that needs a login or fails; download it again"
    if text.startswith(b"<error") or (text.startswith(b"<?xml") and (path.suffix != ".xml" or b"<error>" in text)):
        return "is XML and not the model, such as the error of an object store; download it again"
    if head.startswith(b"\x1f\x8b"):
        return "is compressed by gzip; unpack it, such as by `gunzip`"
    if head.startswith(b"PK\x03\x04") and path.suffix not in _ZIPPED:
        return "is a ZIP archive, or a model of PyTorch; unpack it, or export the model in the format of its name"
    return ""


def _if_empty(path: Path) -> str:
    """The same of a file without a byte. Others beside the graph may be placeholders."""
    try:
        if path.stat().st_size or not path.is_file():
            return ""
        with path.open("rb") as file:  # a file that cannot be read is none that is empty
            return "" if file.read(1) else "is empty; copy it again"
    except OSError:
        return ""
