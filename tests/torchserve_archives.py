"""Model archives of TorchServe, as torch-model-archiver makes them."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["HANDLER", "contents", "mar", "tgz"]

#: A handler of a class: it answers with the length of each body, and raises as the body says.
HANDLER = """
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import PredictionException


class Lengths(BaseHandler):
    def initialize(self, context):
        self.scale = context.model_yaml_config.get("scale", 1)
        self.initialized = True

    def handle(self, data, context):
        answers = []
        for at, row in enumerate(data):
            value = row.get("data") or row.get("body")
            if value == "refuse":
                raise PredictionException("bad", 422)
            if value == "raise":
                raise ValueError("no")
            context.set_response_header(at, "x-rows", str(len(data)))
            answers.append({"length": self.scale * len(value), "type": type(value).__name__})
        return answers
"""


def contents(
    handler: str = "handler.py", files: Mapping[str, str | bytes] | None = None, **model: Any
) -> dict[str, str | bytes]:
    """The files of an archive with ``handler.py``, by their names."""
    entry = {"modelName": "lengths", "modelVersion": "1.0", "handler": handler, **model}
    manifest = {"createdOn": "22/11/2024 10:00:00", "runtime": "python", "model": entry, "archiverVersion": "0.12.0"}
    return {"handler.py": HANDLER, "MAR-INF/MANIFEST.json": json.dumps(manifest), **(files or {})}


def mar(path: Path, files: Mapping[str, str | bytes] | None = None) -> Path:
    """Write a .mar; returns its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (contents() if files is None else files).items():
            archive.writestr(name, content)
    return path


def tgz(path: Path, files: Mapping[str, str | bytes] | None = None) -> Path:
    """Write a .tar.gz; returns its path."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (contents() if files is None else files).items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path
