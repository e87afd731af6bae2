"""Requests of every sort, and the answers that ONNX Runtime gave to them beforehand."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["MODELS", "Question", "Questions"]

#: What is asked for, beside what the storm asks (``tests.e2e.stress``), whose counters are its own.
MODELS: Final = ("addsub", "versions", "texts", "optional", "fixed", "identity_FP16")

_ROWS: Final = (1, 1, 1, 2, 5, 20)
_OF_EACH: Final = 20

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """One request.

    Attributes:
        outputs: what ONNX Runtime answers; empty where the request has to be refused.
        datatypes: Triton's, of the inputs.
        statuses: what it may end with otherwise.
    """

    model: str
    version: str
    inputs: Arrays
    outputs: Arrays
    datatypes: Mapping[str, str]
    statuses: frozenset[str] = field(default_factory=frozenset)

    def difference(self, answer: Any) -> str:
        """How an answer (tritonclient's InferResult) differs from ONNX Runtime's, in words; "" if it does not."""
        if not self.outputs:
            return f"{self.model}: answered, though it is to be refused"
        for name, expected in self.outputs.items():
            found = answer.as_numpy(name)
            if found is not None:
                found = _as_bytes(found)
            if found is None or found.shape != expected.shape or not np.array_equal(found, expected):
                return f"{self.model} version {self.version!r}, {name}: expected {expected}, got {found}"
        return ""


class Questions:
    """A pool of requests.

    Args:
        repository: holds MODELS, as ``tests.e2e.models`` writes them.
        seed: of the values.
    """

    def __init__(self, repository: Path, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sessions = _Sessions(repository)
        made = [_make(model, rng, sessions) for model in MODELS for _ in range(_OF_EACH)]
        self._right = made
        self._wrong = [
            Question("nowhere", "", made[0].inputs, {}, made[0].datatypes, frozenset({"NOT_FOUND"})),
            Question("fixed", "77", *_bad(np.zeros((2, 3), np.float32), "FP32"), frozenset({"NOT_FOUND"})),
            Question("addsub", "", *_bad(np.zeros((1, 16), np.int32), "INT32"), frozenset({"INVALID_ARGUMENT"})),
            Question("fixed", "", *_bad(np.zeros((3, 2), np.float32), "FP32"), frozenset({"INVALID_ARGUMENT"})),
            Question("identity_FP16", "", *_bad(np.zeros((1, 5), np.float16), "FP16"), frozenset({"INVALID_ARGUMENT"})),
        ]

    def choose(self, rng: random.Random) -> Question:
        """Any of them; one in twenty is to be refused."""
        return rng.choice(self._wrong if rng.random() < 0.05 else self._right)


class _Sessions:
    """Sessions of ONNX Runtime, by model and version."""

    def __init__(self, repository: Path) -> None:
        import onnxruntime  # dear to import, and the process that only asks the questions has no need of it

        self._runtime = onnxruntime
        self._repository = repository
        self._made: dict[tuple[str, str], Any] = {}

    def get(self, model: str, version: str) -> Any:
        """The session of a model version, "" for the newest of a model that has one."""
        session = self._made.get((model, version))
        if session is None:
            options = self._runtime.SessionOptions()
            options.log_severity_level = 3
            path = self._repository / model / (version or "1") / "model.onnx"
            session = self._runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            self._made[model, version] = session
        return session


def _make(model: str, rng: np.random.Generator, sessions: _Sessions) -> Question:
    version = str(rng.choice([1, 2, 10])) if model == "versions" else ""
    inputs, datatypes = _inputs(model, rng)
    session = sessions.get(model, version)
    answers = session.run(None, {name: _as_text(array) for name, array in inputs.items()})
    outputs = {
        output.name: _as_bytes(np.asarray(answer))
        for output, answer in zip(session.get_outputs(), answers, strict=True)
    }
    # The ring of "addsub" is small enough to be full.
    statuses: frozenset[str] = frozenset({"RESOURCE_EXHAUSTED"}) if model == "addsub" else frozenset()
    return Question(model, version, inputs, outputs, datatypes, statuses)


def _bad(array: npt.NDArray[Any], datatype: str) -> tuple[Arrays, Arrays, Mapping[str, str]]:
    name = "INPUT0" if array.shape[-1] == 16 else "INPUT"
    return {name: array}, {}, {name: datatype}


def _inputs(model: str, rng: np.random.Generator) -> tuple[Arrays, Mapping[str, str]]:
    rows = int(rng.choice(_ROWS))
    if model == "addsub":
        names: Sequence[str] = ("INPUT0", "INPUT1")
        return {name: _integers(rng, rows, 16) for name in names}, dict.fromkeys(names, "INT32")
    if model == "texts":
        texts = [f"{'ü' * int(rng.integers(0, 30))} {at}".encode() for at in range(3)]
        return {"INPUT": np.array(texts, object)}, {"INPUT": "BYTES"}
    if model == "identity_FP16":
        return {"INPUT": rng.normal(size=(rows, 4)).astype(np.float16)}, {"INPUT": "FP16"}
    if model == "optional":
        inputs = {"INPUT": _integers(rng, 4)}
        if rng.random() < 0.5:
            inputs["bias"] = _integers(rng, 4)
        return inputs, dict.fromkeys(inputs, "INT32")
    if model == "fixed":
        return {"INPUT": rng.normal(size=(2, 3)).astype(np.float32)}, {"INPUT": "FP32"}
    return {"INPUT": _integers(rng, rows, 4)}, {"INPUT": "INT32"}


def _integers(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.int32]:
    return rng.integers(-1_000, 1_000, shape).astype(np.int32)


def _as_text(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """BYTES as ONNX Runtime takes them."""
    if array.dtype != object:
        return array
    return np.array([text.decode() for text in array.flat], object).reshape(array.shape)


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """BYTES as bytes, where ONNX Runtime and JSON have text."""
    if array.dtype != object:
        return array
    texts = [text.encode() if isinstance(text, str) else text for text in array.flat]
    return np.array(texts, object).reshape(array.shape)
