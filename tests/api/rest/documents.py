"""Descriptions of REST as a server writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from tests.signatures import signature, spec
from tests.tables import entry_of, version_of
from toutates.api.rest.openapi.document import DocumentWriter
from toutates.api.restrictions import HTTP_FLAG, by_group, parse_restrictions
from toutates.models.table import ModelState, ModelTable, VersionEntry

__all__ = ["MOST", "entry", "model_paths", "one_input", "written"]

MOST = 1 << 26


def entry(number: int, tensors: Any, state: ModelState = ModelState.READY) -> VersionEntry:
    """A version, of whose servable only the signature is looked at."""
    return entry_of(version_of(SimpleNamespace(signature=tensors), number=number), state)


def one_input(shape: tuple[int, ...], datatype: str = "FP32", *, batched: bool = False, name: str = "x") -> Any:
    return signature([spec(name, datatype, shape)], [spec("y", "FP32", [8])], batched=batched)


def written(table: ModelTable | None = None, *restrictions: str) -> Any:
    secrets = by_group((), parse_restrictions(restrictions, HTTP_FLAG))
    return json.loads(b"".join(DocumentWriter(secrets, MOST).write(table)))


def model_paths(document: Any) -> Iterator[str]:
    for path, item in document["paths"].items():
        if "models" in item.get("post", {}).get("tags", ()):
            yield path
