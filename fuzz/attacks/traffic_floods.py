"""Names with traffic: ids that nobody had before, and requests that are dear to copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from fuzz.attacks.bombs import Bomb
from fuzz.attacks.models import build_many, many_name
from fuzz.attacks.wire import field, framed, infer_message

__all__ = ["ShadowBulk", "SplitIds"]

_RULES: Final = f"""
traffic:
  scanned:
    split: [{{model: {many_name(0)}, weight: 1}}, {{model: {many_name(1)}, weight: 1}}]
    sticky: id
    shadow: {{model: {many_name(2)}, share: 1.0}}
  bulky:
    split: [{{model: shapes, weight: 1}}]
    shadow: {{model: copy, share: 1.0}}
"""
_ROW: Final = bytes(16)
#: FP32 elements of a request that is just small enough to be copied, as its answer is.
_ELEMENTS: Final = 1_000_000


class _OfNames(Bomb):
    """Against a server with rules of traffic."""

    def flags(self, folder: Path) -> Sequence[str]:
        """See ``Attack``: models and rules in the folder's repository."""
        root = folder / "models"
        build_many(root, 3)
        shutil.copytree(root / "shapes", root / "copy")
        (root / "traffic.yaml").write_text(_RULES)
        return ()


class SplitIds(_OfNames):
    """A scan of ids."""

    name = "split-ids"
    summary = "requests of a name that is split by id, each with another id of 100 bytes, all copied for a shadow"
    limit = "the id says which version answers, and is not kept; 256 copies under way, others are left out"
    stops = ()
    ahead = 400

    def __init__(self) -> None:
        self._scan = os.urandom(4).hex()

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def body_for(self, stream_id: int) -> bytes:
        """See ``Bomb``."""
        identity = f"{self._scan}{stream_id:092d}".encode()
        return framed(infer_message("scanned", [1, 4], _ROW, rest=field(3, identity)))


class ShadowBulk(_OfNames):
    """Large requests and answers, each to be copied."""

    name = "shadow-bulk"
    summary = f"requests of {4 * _ELEMENTS // 1_000_000} MB, with answers of as much, all of them copied for a shadow"
    limit = "64 MiB of copies under way, 4 MiB of a request or answer; others are left out"
    stops = ()
    ahead = 2

    @cached_property
    def body(self) -> bytes:
        return framed(infer_message("bulky", [1, _ELEMENTS], bytes(4 * _ELEMENTS), "FP32"))
