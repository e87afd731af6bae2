"""What answers are compared with: the first answer, another server, a local ONNX file, or values of a data file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from toutates.bench.bodies import BodySettings
from toutates.bench.calls import Refused, ask, ask_stream, fetch
from toutates.bench.data import Contents
from toutates.bench.endpoint import GRPC, Endpoint
from toutates.bench.load import Asked
from toutates.bench.metadata import ModelFacts
from toutates.bench.outputs import Output, difference, embeddings_of, outputs_of_grpc, outputs_of_http

__all__ = ["Reference", "ask_for_reference", "of_contents", "of_onnx", "reader"]

Array = npt.NDArray[Any]
Reader = Callable[[bytes], Mapping[str, Output]]


class Reference:
    """The outputs that answers to one request are compared with.

    Attributes:
        expected: the outputs.
        read: the outputs of an answer.
    """

    def __init__(self, expected: Mapping[str, Output], read: Reader) -> None:
        self.expected = expected
        self.read = read

    def difference(self, message: bytes) -> str:
        """How an answer differs, in words; "" if it does not."""
        try:
            return difference(self.read(message), self.expected)
        except Refused as error:
            return str(error)


def reader(settings: BodySettings, api: str) -> Reader:
    """What reads the outputs of answers."""
    if api != "v2":
        return embeddings_of
    return outputs_of_grpc if settings.protocol == GRPC else outputs_of_http


def ask_for_reference(endpoint: Endpoint, asked: Asked, settings: BodySettings, api: str) -> Mapping[str, Output]:
    """The outputs that a server answers a request with.

    Raises:
        Unreachable, Refused: it does not.
    """
    if settings.streams:
        message = ask_stream(endpoint, asked.message, asked.fields)
    elif settings.protocol == GRPC:
        message = ask(endpoint, asked.path, asked.message, asked.fields)
    else:
        message = fetch(endpoint, "POST", asked.path, asked.message, asked.fields)
    return reader(settings, api)(message)


def of_contents(contents: Contents) -> Mapping[str, Output]:
    """The outputs that a data file says."""
    return {name: Output("", (), values) for name, values in contents.expected.items()}


def of_onnx(path: str, facts: ModelFacts, contents: Sequence[Contents]) -> list[Mapping[str, Output]]:
    """The outputs that an ONNX file gives for some contents, computed here.

    Raises:
        Refused: ONNX Runtime is not installed, or cannot run the file with these inputs.
    """
    try:
        import onnxruntime
    except ImportError:
        raise Refused("a reference of ONNX needs ONNX Runtime: pip install 'toutates[cpu]'") from None
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_outputs()]
        types = {one.name: one.datatype for one in facts.outputs}
        return [
            {
                name: Output(types.get(name, ""), tuple(value.shape), _flat(value))
                for name, value in zip(names, session.run(names, _feed(facts, one)), strict=True)
                if name in types
            }
            for one in contents
        ]
    except Exception as error:  # whatever ONNX Runtime raises: it has no class of its own for it
        raise Refused(f"{path}: {' '.join(str(error).split())[:300]}") from None


def _feed(facts: ModelFacts, contents: Contents) -> dict[str, Array]:
    feed = {}
    for one in facts.inputs:
        array = contents.inputs[one.name]
        if one.datatype == "BYTES":
            array = np.array([octets.decode() for octets in array.ravel().tolist()], object).reshape(array.shape)
        feed[one.name] = array
    return feed


def _flat(value: Array) -> Array:
    if value.dtype.kind not in "OUS":
        return value.ravel()
    made = np.empty(value.size, object)
    made[:] = [text.encode() if isinstance(text, str) else bytes(text) for text in value.ravel().tolist()]
    return made
