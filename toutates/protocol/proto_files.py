"""The .proto files as clients need them, in other languages too: those of the folder proto/ of the checkout.

They import each other by bare names, and name the packages that are on the wire. The server's own modules are generated
from the same files, under other names (release/generate_protocol.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["PROTO_NAMES", "read_proto", "write_protos"]

PROTO_NAMES: Final = ("grpc_service.proto", "model_config.proto", "health.proto", "reflection.proto")

_PACKAGE: Final = Path(__file__).resolve().parents[1]


def read_proto(name: str) -> bytes:
    """A file's text. Blocks."""
    installed = _PACKAGE / "proto" / name  # a wheel has the folder inside of the package
    return (installed if installed.exists() else _PACKAGE.parent / "proto" / name).read_bytes()


def write_protos(folder: Path) -> list[Path]:
    """Write all files into a folder, which is made if it is not there, over older ones; returns their paths. Blocks.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in PROTO_NAMES]
    for path in paths:
        path.write_bytes(read_proto(path.name))
    return paths
