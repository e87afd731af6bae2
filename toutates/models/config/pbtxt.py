"""The file config.pbtxt beside the version directories: Triton's ModelConfig as protobuf text, read and written."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from google.protobuf import text_format

from toutates.models.config.small_file import read_small_file
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.names import with_client_names
from toutates.system.errors import ConfigurationError
from toutates.system.text import one_line

__all__ = ["PBTXT_NAME", "config_of", "parse_pbtxt", "read_pbtxt", "read_pbtxt_file", "says_batch_size", "write_pbtxt"]

PBTXT_NAME: Final = "config.pbtxt"

#: A thousand times what a real file holds; the text parser of pure-Python protobuf takes seconds for more.
_MAX_FILE_BYTES: Final = 2**20
#: What names no field: texts and comments.
_NO_FIELDS: Final = re.compile(rb"""\"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""")
_BATCH_SIZE: Final = re.compile(rb"\bmax_batch_size\s*:")


def read_pbtxt(source: Path) -> ModelConfig | None:
    """Read a config.pbtxt; None where there is no such file.

    Raises:
        ConfigurationError: it cannot be read, or is not a ModelConfig in protobuf's text format.
    """
    data = read_pbtxt_file(source)
    return None if data is None else config_of(data, source)


def read_pbtxt_file(source: Path) -> bytes | None:
    """The bytes of a config.pbtxt for ``config_of``; None where there is no such file.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        return read_small_file(source, _MAX_FILE_BYTES)
    except ConfigurationError as error:
        # Whose text begins with "failed to read" already.
        raise _failed(source, error.problem.removeprefix("cannot be read: "), error.remedy) from error


def says_batch_size(data: bytes) -> bool:
    """Whether a file has ``max_batch_size``, which may be 0: a message does not tell that from no field at all."""
    return b"max_batch_size" in data and _BATCH_SIZE.search(_NO_FIELDS.sub(b"", data)) is not None


def config_of(data: bytes, source: Path) -> ModelConfig:
    """The ModelConfig that a file's bytes are.

    Raises:
        ConfigurationError: as ``parse_pbtxt``, or it is not UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _failed(source, f"line {line}: is not UTF-8", "save it as UTF-8") from error
    return parse_pbtxt(text, source)


def parse_pbtxt(text: str, source: Path) -> ModelConfig:
    """A ModelConfig from protobuf's text format.

    Raises:
        ConfigurationError: in Triton's words, with the line, the column and what protobuf found there.
    """
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        found = one_line(with_client_names(str(error)), 300)
        if line is not None:
            found = found.removeprefix(f"{line}:{column} : ")
            found = f"line {line}, column {column}: {found}" if column is not None else f"line {line}: {found}"
        raise _failed(source, found, _remedy(found)) from error
    except (ValueError, RecursionError) as error:  # what the parser lets through: numbers and escapes out of range
        raise _failed(source, one_line(error, 300), "correct it") from error
    return config


def write_pbtxt(config: ModelConfig) -> str:
    """The text that ``parse_pbtxt`` reads the same configuration from."""
    return str(text_format.MessageToString(config, as_utf8=True))


def _failed(source: Path, problem: str, remedy: str) -> ConfigurationError:
    # Triton's text, at the beginning, as its users look for it.
    return ConfigurationError(f"failed to read text proto from {source}: {problem}", remedy=remedy)


def _remedy(problem: str) -> str:
    """Protobuf quotes the field that it does not know: the one that was meant may be close."""
    _, _, rest = problem.partition('has no field named "')
    unknown = rest.partition('"')[0]
    if not unknown:
        return "correct the text there"
    near = get_close_matches(unknown, sorted(_field_names()), n=1)
    return f"did you mean `{near[0]}`?" if near else f"remove `{unknown}`"


def _field_names() -> set[str]:
    """Names of the fields of every message within a ModelConfig."""
    names: set[str] = set()
    seen: set[str] = set()
    waiting = [ModelConfig.DESCRIPTOR]
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            names.add(field.name)
            if field.message_type is not None:
                waiting.append(field.message_type)
    return names
