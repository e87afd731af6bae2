"""Aliases and traffic as clients see and change them: by an endpoint of REST, because the v2 protocol has no RPC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toutates.models.table import ModelTable
from toutates.protocol import grpc_service_pb2 as pb
from toutates.repositories.control.traffic import TrafficControl
from toutates.system.client_text import without_paths
from toutates.system.errors import InvalidRequest

__all__ = ["NOTE", "TrafficRequest", "as_note", "change_of", "read_change", "traffic_document"]

#: Name of the call by which processes tell each other of a change.
NOTE: Final = "Traffic"
_CONFIG: Final = "config"


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """A request about aliases and traffic.

    Attributes:
        change: see ``TrafficControl.change``; None where the request only asks.
    """

    change: Mapping[str, Any] | None = None

    @property
    def names(self) -> str:
        """What is changed, for the log."""
        parts = (self.change or {}).values()
        return ", ".join(sorted({name for part in parts if isinstance(part, dict) for name in part}))


def read_change(body: bytes) -> TrafficRequest:
    """The change that a body asks for.

    Raises:
        InvalidRequest: it is no JSON object.
    """
    try:
        change = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}") from None
    if not isinstance(change, dict):
        raise InvalidRequest("the body is no JSON object; send {'aliases': {NAME: MODEL}}, 'traffic', or both")
    return TrafficRequest(change)


def traffic_document(table: ModelTable) -> dict[str, Any]:
    """The rules that are in force, and what is wrong."""
    document = table.traffic.document
    return {
        "aliases": document.get("aliases", {}),
        "traffic": document.get("traffic", {}),
        "problem": without_paths(table.traffic_problem),
    }


def as_note(change: Mapping[str, Any]) -> pb.RepositoryModelLoadRequest:
    """A change as a message to other processes."""
    said = pb.RepositoryModelLoadRequest(model_name="aliases and traffic")
    said.parameters[_CONFIG].string_param = json.dumps(change)
    return said


def change_of(control: TrafficControl, said: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
    """Make a change that came from another process.

    Raises:
        InvalidRequest: it cannot be made.
    """
    control.change(json.loads(said.parameters[_CONFIG].string_param))
    return pb.RepositoryModelLoadResponse()
