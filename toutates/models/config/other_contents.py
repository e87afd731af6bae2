"""What a file is that has a graph's name and is something else: what a download or a checkout leaves in its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["what_it_is"]

_LFS: Final = b"version https://git-lfs.github.com/spec/"
#: Bytes that are looked at.
_LOOKED_AT: Final = 512


def what_it_is(path: Path, *, is_graph: bool = True) -> str:
    """What is in a file instead, and what to do, to end a sentence that begins with its name; "" if nothing says it.

    Args:
        path: of the file.
        is_graph: whether it should be a graph; else only a pointer is told, because other files may be anything.
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
    if not is_graph:
        return ""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "is an HTML page and not a graph, as a download gives that asks for a login or fails; download it again"
    if text.startswith((b"<?xml", b"<error")):
        return "is XML and not a graph, such as the error of an object store; download it again"
    if head.startswith(b"\x1f\x8b"):
        return "is compressed by gzip; unpack it, such as by `gunzip`"
    if head.startswith(b"PK\x03\x04"):
        return "is a ZIP archive, or a model of PyTorch, and not a graph; unpack it, or export the model to ONNX"
    return "is empty; copy it again" if not head else ""
