"""Regions of shared memory that hold inputs of requests, and take outputs: made here, registered with the server."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from toutates.bench.bodies import Region, raw_tensor
from toutates.bench.calls import SERVICE, Refused, ask, fetch
from toutates.bench.data import Contents
from toutates.bench.endpoint import GRPC, Endpoint
from toutates.bench.link import Unreachable
from toutates.bench.metadata import ModelFacts
from toutates.protocol.grpc_service_pb2 import (
    SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryUnregisterRequest,
)

__all__ = ["SharedRegions"]

_FOLDER: Final = Path("/dev/shm")


class SharedRegions:
    """Regions of one measurement, which ``close`` unregisters and removes.

    Args:
        endpoint: the server, on this machine.
        fields: metadata of calls.
    """

    def __init__(self, endpoint: Endpoint, fields: Mapping[str, str]) -> None:
        self._endpoint, self._fields = endpoint, fields
        self._names: list[str] = []

    def inputs(self, facts: ModelFacts, contents: Sequence[Contents]) -> list[dict[str, Region]]:
        """Put the inputs of some requests into a region; returns where each input of each is.

        Raises:
            Refused: the server does not take the region, or it cannot be made.
        """
        name = self._name()
        octets = bytearray()
        found = []
        for one in contents:
            regions = {}
            for tensor in facts.inputs:
                raw = raw_tensor(tensor.datatype, one.inputs[tensor.name])
                regions[tensor.name] = Region(name, len(octets), len(raw))
                octets += raw
            found.append(regions)
        self._make(name, bytes(octets))
        return found

    def outputs(self, facts: ModelFacts, size: int) -> dict[str, Region]:
        """A region with room for ``size`` bytes of each output of a model.

        Raises:
            Refused: see ``inputs``.
        """
        name = self._name()
        self._make(name, bytes(size * len(facts.outputs)))
        return {one.name: Region(name, place * size, size) for place, one in enumerate(facts.outputs)}

    def close(self) -> None:
        """Unregister and remove all."""
        for name in self._names:
            with contextlib.suppress(Refused, Unreachable):
                self._unregister(name)
            with contextlib.suppress(OSError):
                (_FOLDER / name).unlink()
        self._names.clear()

    def _name(self) -> str:
        return f"toutates-bench-{os.getpid()}-{len(self._names)}"

    def _make(self, name: str, octets: bytes) -> None:
        self._names.append(name)
        try:
            with open(os.open(_FOLDER / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
                file.write(octets)
        except OSError as error:
            raise Refused(f"shared memory of {len(octets)} bytes cannot be made: {error.strerror}") from None
        if self._endpoint.protocol == GRPC:
            message = SystemSharedMemoryRegisterRequest(name=name, key="/" + name, byte_size=len(octets))
            path = SERVICE + "SystemSharedMemoryRegister"
            ask(self._endpoint, path, message.SerializeToString(), self._fields)
            return
        body = json.dumps({"key": "/" + name, "offset": 0, "byte_size": len(octets)}).encode()
        fetch(self._endpoint, "POST", f"/v2/systemsharedmemory/region/{quote(name)}/register", body, self._fields)

    def _unregister(self, name: str) -> None:
        if self._endpoint.protocol == GRPC:
            message = SystemSharedMemoryUnregisterRequest(name=name).SerializeToString()
            ask(self._endpoint, SERVICE + "SystemSharedMemoryUnregister", message, self._fields)
        else:
            path = f"/v2/systemsharedmemory/region/{quote(name)}/unregister"
            fetch(self._endpoint, "POST", path, b"", self._fields)
