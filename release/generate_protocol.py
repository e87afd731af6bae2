"""Generates toutates/protocol/*_pb2.py and .pyi from proto/*.proto: `make proto`.

python release/generate_protocol.py [FOLDER]     the folder that they are written below; the checkout by default

The files in proto/ are as clients need them. Clients generate modules of them, or have such modules from
``tritonclient``, and define the messages in protobuf's pool, which takes a name once in a process. So the server's own
modules are of packages and files of other names. The name of a package is not part of a message on the wire; the paths
of the RPCs are in toutates/api/grpc.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["generate", "private"]

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = Path("toutates", "protocol")
_PACKAGE: Final = re.compile(r"^package ", re.MULTILINE)
_IMPORT: Final = re.compile(r'^import "', re.MULTILINE)
#: Of other languages.
_OPTION: Final = re.compile(r"^option \w+_package = .*\n", re.MULTILINE)


def private(text: str) -> str:
    """A .proto file, with the names that the server's own modules have."""
    text = _OPTION.sub("", text)
    return _IMPORT.sub(f'import "{FOLDER.as_posix()}/', _PACKAGE.sub("package toutates.", text))


def generate(target: Path) -> None:
    """Write the modules below a folder; raises CalledProcessError where protoc fails."""
    with tempfile.TemporaryDirectory() as work:
        sources = []
        for path in sorted((ROOT / "proto").glob("*.proto")):
            own = Path(work) / FOLDER / path.name
            own.parent.mkdir(parents=True, exist_ok=True)
            own.write_text(private(path.read_text("utf-8")), "utf-8")
            sources.append(str(own.relative_to(work)))
        options = [f"-I{work}", f"--python_out={target}", f"--pyi_out={target}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *sources], check=True)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
