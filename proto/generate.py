"""Write toutates/protocol/*_pb2.py and *_pb2.pyi from the .proto files beside this script.

Run as ``python proto/generate.py``, with grpcio-tools installed. The same .proto files give the same bytes.

protoc does the parsing and writes the type stubs. The modules themselves are written here, because protoc's own would
register their messages in protobuf's default descriptor pool, where tritonclient registers its messages under the same
names; whichever a process imported second would fail. Ours go to the pool of ``toutates.protocol.pool``. They also
need nothing of protobuf that changes between its versions, so they load on an older runtime than grpcio-tools asks for.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

SOURCES = Path(__file__).resolve().parent
TARGET = SOURCES.parent / "toutates" / "protocol"
PROTO_FILES = ("model_config.proto", "grpc_service.proto", "health.proto")
LITERAL_WIDTH = 112  # characters of a bytes literal per line, within lines of 120

MODULE = '''\
"""Messages of {source}. Written by proto/generate.py; edit the .proto file instead."""

from toutates.protocol import {imports}

DESCRIPTOR = pool.POOL.AddSerializedFile(
{literal}
)
pool.build(DESCRIPTOR, globals())
'''

STUB = """\
# Messages of {source}. Written by proto/generate.py; edit the .proto file instead.
# ruff: noqa
{body}"""


def generate(target: Path) -> list[Path]:
    """Write every module and its stub.

    Args:
        target: an existing directory; files of the same names are overwritten.

    Returns:
        The files written, in the order of ``PROTO_FILES``, each module before its stub.

    Raises:
        subprocess.CalledProcessError: grpcio-tools is not installed, or protoc refused a .proto file; standard error
            says which.
    """
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        for source in run_protoc(Path(scratch)).file:
            name = module_name(source.name)
            module, stub = target / f"{name}.py", target / f"{name}.pyi"
            module.write_text(module_text(source), encoding="utf-8")
            stub.write_text(stub_text(source.name, Path(scratch, f"{name}.pyi").read_text("utf-8")), encoding="utf-8")
            written += [module, stub]
    return written


def run_protoc(scratch: Path) -> FileDescriptorSet:
    """Let protoc write the stubs into ``scratch``, and return what it read, in the order of ``PROTO_FILES``."""
    described = scratch / "descriptors.bin"
    options = [f"-I{SOURCES}", f"--pyi_out={scratch}", f"--descriptor_set_out={described}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *PROTO_FILES], check=True)
    return FileDescriptorSet.FromString(described.read_bytes())


def module_name(proto_file: str) -> str:
    """``model_config.proto`` -> ``model_config_pb2``."""
    return f"{Path(proto_file).stem}_pb2"


def module_text(source: FileDescriptorProto) -> str:
    """The module that adds one file to the private pool."""
    imports = "pool"
    if source.dependency:
        # Unused by name: importing a module puts its file into the pool, where ours looks for it.
        imports = ", ".join([*map(module_name, source.dependency), f"{imports}  # noqa: F401"])
    for message in source.message_type:
        drop_json_names(message)
    literal = "\n".join(f"    {line}" for line in literal_lines(source.SerializeToString(deterministic=True)))
    return MODULE.format(source=source.name, imports=imports, literal=literal)


def drop_json_names(message: DescriptorProto) -> None:
    """Forget the names that protobuf derives from the fields' own: protoc spells them out for other readers."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        drop_json_names(nested)


def literal_lines(data: bytes) -> Iterator[str]:
    """``data`` as bytes literals of at most ``LITERAL_WIDTH`` characters each."""
    start = 0
    for end in range(1, len(data) + 1):
        if end == len(data) or len(repr(data[start : end + 1])) > LITERAL_WIDTH:
            yield repr(data[start:end])
            start = end


def stub_text(source: str, text: str) -> str:
    """protoc's stub, with the imports of sibling modules made absolute."""
    body = re.sub(r"^import (\w+_pb2) as ", r"from toutates.protocol import \1 as ", text, flags=re.MULTILINE)
    return STUB.format(source=source, body=body)


if __name__ == "__main__":
    for path in generate(TARGET):
        sys.stdout.write(f"wrote {path.relative_to(SOURCES.parent)}\n")
