"""Models that come with the request to load them, as files in a directory that is there only while they load."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from toutates.models.config.settings import is_inside
from toutates.models.config.triton_configuration import TritonConfiguration
from toutates.models.repository import ModelFolder, has_control_characters, scan_model
from toutates.system.errors import NotInRepository
from toutates.system.text import shown

__all__ = ["misplaced", "uploaded"]

_MAX_PATH: Final = 1_024


def misplaced(files: Iterable[str]) -> str:
    """What is wrong with the first of these paths that does not stay in the model's directory; "" if all do."""
    for name in files:
        # A backslash is a letter of a name here, and nobody means it.
        if (
            not is_inside(name)
            or "\\" in name
            or len(name) > _MAX_PATH
            or name.endswith("/")
            or has_control_characters(name)
        ):
            example = "such as 'file:1/model.onnx'"
            return f"load parameter 'file:{shown(name)}' must name a file in the model's directory, {example}"
    return ""


@contextmanager
def uploaded(name: str, files: Mapping[str, bytes], configuration: TritonConfiguration) -> Iterator[ModelFolder]:
    """A directory with these files alone, for as long as the block runs. Entering and leaving it blocks.

    Args:
        name: of the model.
        files: by path in the model's directory, with which ``misplaced`` has found nothing wrong.
        configuration: of the model.

    Raises:
        NotInRepository: they cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="toutates-upload-", ignore_cleanup_errors=True) as temporary:
        # Not the model's own name, which may be none of a directory's.
        root = Path(temporary) / "model"
        try:
            for path, content in files.items():
                target = root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotInRepository(f"the files of the request cannot be written: {reason}") from error
        yield replace(scan_model(root, configuration), name=name)
