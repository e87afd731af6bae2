"""Keys of the files that users write. What a key takes is what the product says of a value that fits nowhere."""

from __future__ import annotations

import ast
import copy
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import yaml

from toutates import backends
from toutates.access.groups import GROUPS
from toutates.access.jwks import Jwks
from toutates.access.quotas import Quotas
from toutates.access.rules import read_rules
from toutates.api.restrictions import PROTOCOLS
from toutates.backends.plugins.catalogue import SHIPPED
from toutates.models.config.ensemble_yaml import ENSEMBLE
from toutates.models.config.other_kinds import backend_of_platform
from toutates.models.config.padding import PaddingSettings
from toutates.models.config.sequences import SequenceSettings
from toutates.models.config.settings import (
    CONFIG_NAME,
    ModelSettings,
    ProfilingSettings,
    SessionSettings,
    load_settings,
)
from toutates.models.config.triton_fields import FIELDS, PARAMETERS
from toutates.models.traffic.reading import read_rules_file
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.system.errors import ConfigurationError

__all__ = ["access_lines", "config_pbtxt_lines", "config_yaml_lines", "traffic_lines"]

Document = dict[str, Any]
Read = Callable[[Path], object]

#: A key that is like no other.
_UNKNOWN: Final = "zzzzzz"
#: A value that fits nowhere.
_WRONG: Final[list[list[int]]] = [[]]
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")

# --- the keys that a reader knows -------------------------------------------------------------------------------------


def _problems(read: Read, file: str, document: Document) -> list[str]:
    """What is wrong with a document, line by line, without the file's path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.write_text(json.dumps(document))  # which is YAML too, and quicker to write
        try:
            read(path)
        except ConfigurationError as error:
            return [line.removeprefix(f"{path}: ") for line in str(error).splitlines()]
    return []


def _with_unknown(value: Any) -> Any:
    if isinstance(value, dict):
        return {**{key: _with_unknown(one) for key, one in value.items()}, _UNKNOWN: None}
    return [_with_unknown(one) for one in value] if isinstance(value, list) else value


def _lines(read: Read, file: str, document: Document, defaults: Mapping[str, str] = {}) -> list[str]:
    """A line for each key: what it takes, whether it is required, and its default.

    Args:
        read: reads a file, and names unknown keys together with those that it knows.
        file: its name.
        document: has each mapping that there may be; names that users choose are NAME there.
        defaults: by key.
    """
    assert _problems(read, file, document) == []
    lines = []
    for line in _problems(read, file, _with_unknown(document)):
        # A file of secrets names where the key is, and not the key.
        found = re.fullmatch(rf"(?:(.*){_UNKNOWN}: |(?:(.*): )?has an )unknown key; known keys: (.*)", line)
        for key in found[3].split(", ") if found else ():
            path = (found[1] or (f"{found[2]}." if found[2] else "")) + key if found else ""
            wrong = _problem_of(path, _problems(read, file, _changed(document, path, _WRONG)))
            without = _changed(document, path, None)
            missing = "" if without == document else _problem_of(path, _problems(read, file, without))
            parts = [re.sub(r"\[\d+\]", "[]", path), wrong or "takes anything"]
            parts += ["required"] if "missing" in missing or "names no" in missing else []
            parts += [f"default {defaults[path]}"] if path in defaults else []
            lines.append("  ".join(parts))
    return sorted(dict.fromkeys(lines))


def _problem_of(path: str, problems: list[str]) -> str:
    """What is wrong with one key, without the value and the remedy."""
    texts = [line.removeprefix(f"{path}: ") for line in problems if line.startswith(f"{path}: ")]
    return texts[0].partition(" (got ")[0].partition(";")[0] if texts else ""


def _changed(document: Document, path: str, value: Any) -> Document:
    """A copy with another value at a path; without the key where that is None."""
    result = copy.deepcopy(document)
    at: Any = result
    *above, last = [int(index) if index else name for name, index in _STEP.findall(path)]
    for step in above:
        at = at[step]
    if value is None:
        at.pop(last, None)
    else:
        at[last] = value
    return result


def _defaults(record: type, prefix: str = "") -> dict[str, str]:
    """The defaults of a record that are plain values."""
    assert is_dataclass(record)
    plain = {own.name: own.default for own in fields(record) if own.default is not MISSING}
    return {
        prefix + name: yaml.safe_dump(value, default_flow_style=True).splitlines()[0]
        for name, value in plain.items()
        if isinstance(value, bool | int | float | str) and value != ""
    }


# --- config.yaml ------------------------------------------------------------------------------------------------------

_BASE: Final[Document] = {
    "backend": "supertensor",
    "batch_size": 8,
    "capacity": 8,
    "num_executors": 1,
    "allocator": "cpu",
}
_WARMUP: Final = {"inputs": {"NAME": {"datatype": "FP32", "shape": [4]}}}
_MODEL: Final[Document] = {
    **_BASE,
    "profiling": {},
    "session": {},
    "warmup": [_WARMUP],
    "rate_limits": [{"resources": [{"name": "NAME"}]}],
}
#: Keys that exclude each other have documents of their own.
_DOCUMENTS: Final[tuple[Document, ...]] = (
    _MODEL,
    {**_BASE, "padding": {"inputs": {"NAME": {}}}},
    {
        **_BASE,
        "ragged": {
            "inputs": {"NAME": [-1, -1]},
            "batch_inputs": {"NAME1": {"kind": "ends", "of": "NAME", "datatype": "INT32"}},
            "outputs": {"NAME": {"of": "NAME", "shape": [-1, -1]}},
        },
    },
    {
        **_BASE,
        "sequences": {
            "controls": {"NAME": {"kind": "start", "datatype": "INT32", "values": [0, 1]}},
            "states": [{"input": "NAME", "output": "NAME"}],
        },
    },
    {**_BASE, "priority_levels": 2, "default_priority": 1, "priority_queues": {"1": {}}},
    {
        "backend": ENSEMBLE,
        "inputs": {"NAME": {"datatype": "FP32", "shape": [4]}},
        "outputs": {"NAME": {"datatype": "FP32", "shape": [4]}},
        "steps": [{"model": "NAME", "inputs": {"NAME": "NAME"}, "outputs": {"NAME": "NAME"}}],
    },
)


def config_yaml_lines() -> list[str]:
    """Keys of config.yaml, of models and of ensembles."""
    defaults = {
        **_defaults(ModelSettings),
        **_defaults(ProfilingSettings, "profiling."),
        **_defaults(SessionSettings, "session."),
        **_defaults(SequenceSettings, "sequences."),
        **_defaults(PaddingSettings, "padding."),
    }
    defaults = {key: value for key, value in defaults.items() if key not in _BASE}
    lines: list[str] = []
    for document in _DOCUMENTS:
        is_ensemble = document["backend"] == ENSEMBLE
        names = (ENSEMBLE, "supertensor") if is_ensemble else ("supertensor", "onnxruntime")

        def read(path: Path, names: tuple[str, ...] = names) -> object:
            return load_settings(path.parent, names, most_problems=None)

        found = _lines(read, CONFIG_NAME, document, {} if is_ensemble else defaults)
        lines += [f"ensemble {line}" for line in found] if is_ensemble else found
    return sorted(dict.fromkeys(lines))


# --- config.pbtxt -----------------------------------------------------------------------------------------------------


def config_pbtxt_lines() -> list[str]:
    """Fields of ModelConfig and what becomes of each, keys of ``parameters``, platforms and backends."""
    lines = [f"field {line}" for line in _fields(ModelConfig.DESCRIPTOR, "")]
    lines += [f"parameter {name}  of ONNX models" for name in PARAMETERS]
    lines += [f"parameter {name}  of backend {backend}" for backend, name in _parameters_of_frameworks()]
    for platform in ("onnxruntime_onnx", "ensemble", "tensorrt_plan", "pytorch_libtorch", "tensorflow_savedmodel"):
        lines.append(f"platform {platform}  backend {backend_of_platform(platform)}")
    for name, backend in SHIPPED.items():
        lines.append(f"backend {name}  extra {backend.extra or 'none'}  files {','.join(backend.files) or 'none'}")
    return sorted(dict.fromkeys(lines))


def _fields(descriptor: Any, prefix: str) -> Iterator[str]:
    for field in descriptor.fields:
        path = prefix + field.name
        rule = FIELDS.get(path)
        if rule is not None:
            yield f"{path}  {rule.verdict.value}" + (f"  {rule.note}" if rule.note else "")
        elif field.message_type is not None and any(known.startswith(path + ".") for known in FIELDS):
            yield from _fields(field.message_type, path + ".")
        else:
            yield f"{path}  unknown to the table"


def _parameters_of_frameworks() -> Iterator[tuple[str, str]]:
    """Keys of ``parameters`` that our other backends read, by a name in their text."""
    room = Path(backends.__path__[0])
    for backend, path in (
        *((path.stem, path) for path in (room / "frameworks").glob("*.py")),
        ("python", room / "python" / "kind.py"),
        ("text", room / "text" / "kind.py"),
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield from ((backend, key) for key in _keys_read(node))


#: Methods of ``Source`` whose first text is no key.
_NOT_KEYS: Final = ("source.refused", "source.require_pickle")


def _keys_read(call: ast.Call) -> Iterator[str]:
    """Keys in ``source.text("key")``, ``parameters.get("key")`` and ``read(parameters, "key")``."""
    texts = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    function, first = call.func, call.args[0] if call.args else None
    place = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ast.unparse(first) if first else ""
    if ast.unparse(function) == "source.keeps_state":
        yield "stateless"
    elif texts and place in ("source", "parameters") and ast.unparse(function) not in _NOT_KEYS:
        yield texts[0]


# --- the other files --------------------------------------------------------------------------------------------------


def access_lines() -> list[str]:
    """Keys of the file of --access-file, and the groups that it names."""
    document: Document = {
        "keys": [
            {"name": "NAME", "sha256": "0" * 64, "groups": ["inference"], "quota": {"requests_per_second": 1}},
        ]
    }
    lines = _lines(lambda path: read_rules(path, Quotas(lambda: 0)), "access.yaml", document)
    lines += _lines(_read_tokens, "access.yaml", {"tokens": [_TOKEN]})
    lines += [f"group {group}  {_rpcs(group)}" for group in GROUPS]
    return sorted(dict.fromkeys(lines))


_TOKEN: Final[Document] = {
    "issuer": "https://issuer.example",
    "audience": "NAME",
    "jwks": "jwks.json",
    "groups": ["inference"],
}


def _read_tokens(path: Path) -> object:
    """Read a file with tokens, but for the keys of their issuers: these are read by packages of the extra jwt."""
    with patch("toutates.access.rules.read_jwks", return_value=Jwks()):
        return read_rules(path, Quotas(lambda: 0))


def _rpcs(group: str) -> str:
    paths = PROTOCOLS.get(group, ())
    return ", ".join(path.rpartition("/")[2] for path in paths) or "pages of --metrics-addr"


def traffic_lines() -> list[str]:
    """Keys of the file of --traffic-file."""
    document: Document = {
        "aliases": {"NAME1": {"model": "NAME2"}},
        "traffic": {
            "NAME": {
                "split": [{"version": 1, "weight": 1}, {"version": 2, "weight": 1}],
                "shadow": {"model": "NAME3"},
            }
        },
    }
    return _lines(read_rules_file, "traffic.yaml", document)
