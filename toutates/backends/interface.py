"""What a package implements to bring a backend: ``docs/writing-a-backend.md`` tells it step by step.

A package names a subclass of ``Backend`` in the entry point group ``toutates.backends``. It may import this module and
no other of Toutates: only what is here stays as it is while ``INTERFACE`` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy.typing as npt

from toutates.system.errors import ConfigurationError, InvalidRequest

__all__ = [
    "INTERFACE",
    "Array",
    "Backend",
    "Instance",
    "InvalidRequest",
    "Request",
    "Responder",
    "SequenceInstance",
    "Source",
    "Tensor",
    "Tensors",
]

#: The version of this interface. It grows when a backend that was written before would not work any more.
INTERFACE: Final = 1

#: A tensor's values. BYTES are arrays of ``bytes`` objects; BF16, which NumPy lacks, is uint16 of the same bits.
Array = npt.NDArray[Any]

_TRUE: Final = ("1", "true", "on", "yes")
_FALSE: Final = ("0", "false", "off", "no")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a model.

    Attributes:
        name: for clients.
        datatype: Triton's name of the element type: BOOL, INT8 to INT64, UINT8 to UINT64, FP16, BF16, FP32, FP64,
            BYTES.
        shape: of the whole tensor, -1 for any size. Where the first dimension of every tensor is -1, it counts rows
            that do not depend on each other, and rows of several requests are run together.
        optional: whether a request may leave the input out; only in models that are not batched.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Tensors:
    """All tensors of a model.

    Attributes:
        inputs, outputs: in the order in which clients see them; at least one each.
        decoupled: whether a request gets none, one or many responses: ``Backend.respond`` is called then, and not
            ``run``.
        independent_rows: whether what a row of a batch comes to does not depend on the rows beside it, so that rows of
            several requests are run together. None where the backend cannot know, because the model may be any graph:
            then the server runs random rows together and one by one before the model is ready, and compares. False has
            each request run by itself, whole.
        keeps_state: whether an instance keeps something of a run for the next one. Only for models with sequences
            (``Source.keeps_state``): ``Backend.run_sequence`` is called then, and not ``run``, for one request at a
            time.
        max_rows: rows of one run at most that the model itself can compute; 0 for any number.
        warnings: for the operator, one sentence each, in the log and in ``toutates check``.
    """

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    decoupled: bool = False
    independent_rows: bool | None = True
    keeps_state: bool = False
    max_rows: int = 0
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """What a version is loaded from.

    Attributes:
        model: the model's name.
        version: its number.
        directory: of the version.
        path: the model's file: what the configuration names, else the first of ``Backend.filenames`` that is there; the
            directory where the backend has no file names.
        batch_size: rows of one run at most; what the model itself needs may be less.
        instances: how many instances will be asked for.
        inputs, outputs: what config.pbtxt declares of the tensors, with whole shapes; empty where it leaves that to the
            backend.
        configuration: the file that configures the version, for errors.
        parameters: of the configuration. Take them by ``text``, ``integer`` and ``flag``: those that nobody has taken
            are named in a warning.
        sequences: whether the configuration has sequences (``sequence_batching``).
        allow_pickle: whether the operator lets files be loaded that may hold pickles; see ``require_pickle``.
    """

    model: str
    version: int
    directory: Path
    path: Path
    batch_size: int = 1
    instances: int = 1
    inputs: Sequence[Tensor] = ()
    outputs: Sequence[Tensor] = ()
    configuration: Path = Path("config.pbtxt")
    parameters: Mapping[str, str] = field(default_factory=dict)
    sequences: bool = False
    allow_pickle: bool = False
    _taken: set[str] = field(default_factory=set)

    def text(self, key: str, default: str = "", among: Sequence[str] = ()) -> str:
        """A parameter's text.

        Raises:
            ConfigurationError: it is not ``among`` these, where any are given.
        """
        self._taken.add(key)
        value = self.parameters.get(key, default)
        if among and value not in among:
            raise self.refused(key, f"is not one of {', '.join(among)}", "write one of them")
        return value

    def integer(self, key: str, default: int, lowest: int = 0, highest: int = 2**31 - 1) -> int:
        """A parameter's whole number.

        Raises:
            ConfigurationError: it is none, or is out of bounds.
        """
        value = self.text(key, str(default)).strip()
        if not value.isascii() or not value.isdigit() or not lowest <= int(value[:18]) <= highest:
            raise self.refused(key, f"is not a whole number from {lowest} to {highest}", f"write such as {default}")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        """A parameter that is true or false.

        Raises:
            ConfigurationError: it is neither.
        """
        value = self.text(key, "true" if default else "false").strip().lower()
        if value not in _TRUE + _FALSE:
            raise self.refused(key, "is neither true nor false", "write true or false")
        return value in _TRUE

    def keeps_state(self, what: str) -> bool:
        """Whether a model that keeps a state between runs does so for sequences, each of which has a state of its own.

        Call it for such a model alone. The next caller must never see what the last one has left.

        Args:
            what: keeps it, such as "variables (ReadValue, Assign)".

        Returns:
            True for ``Tensors.keeps_state``. False where the operator wants no state (the parameter ``stateless``):
            then the backend has to begin each run with a fresh one.

        Raises:
            ConfigurationError: the configuration has neither, or both.
        """
        is_stateless = self.flag("stateless", False)
        if is_stateless and self.sequences:
            raise self.refused(
                "stateless", "stands beside sequences, each of which has a state of its own", "remove one of the two"
            )
        if not is_stateless and not self.sequences:
            raise self.refused(
                "stateless",
                f"is not given, and the model keeps a state from run to run: {what}; the next caller would see what "
                "the last one has left",
                "write sequence_batching { } (config.yaml: sequences), where each sequence has a state of its own, or "
                "the parameter stateless: true, where each run begins with a fresh one",
            )
        return self.sequences

    def require_pickle(self, what: str) -> None:
        """Refuse a file that may hold pickles, unless the operator has allowed them. Call it before reading the file.

        Args:
            what: the file is, such as "a file of joblib".

        Raises:
            PermissionError: the operator has not.
        """
        if not self.allow_pickle:
            raise PermissionError(
                f"'{self.path.name}' is {what}, which may hold pickles, and these run the code of whoever wrote them; "
                "start the server with --allow-pickle if you trust everybody who can write models"
            )

    def refused(self, key: str, problem: str, remedy: str) -> ConfigurationError:
        """The error to raise for a parameter that cannot be used.

        Args:
            key: the parameter.
            problem: what is wrong with it, without a full stop.
            remedy: what to write instead, without a full stop.
        """
        return ConfigurationError(
            problem,
            source=self.configuration,
            key=f"parameters['{key}']",
            value=self.parameters.get(key),
            remedy=remedy,
        )

    @property
    def left_over(self) -> list[str]:
        """Parameters that nobody has taken, sorted."""
        return sorted(self.parameters.keys() - self._taken)


class Instance(Protocol):
    """What runs batches, used by one thread at a time: an instance of an instance group."""

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See ``Backend.run``."""
        ...


class SequenceInstance(Protocol):
    """What runs requests of sequences by a model that keeps a state: an instance of an instance group."""

    def run_sequence(self, inputs: Mapping[str, Array], slot: int, *, begins: bool) -> Mapping[str, Array]:
        """See ``Backend.run_sequence``."""
        ...


class Request(Protocol):
    """A request to a decoupled model, which gets none, one or many responses. Any thread may use it, at any time.

    Attributes:
        identifier: the request's id; "" for none.
        inputs: by name. They are the request's own, and may be kept.
        parameters: of the request, by name.
        cancelled: whether nobody waits for responses any more. Look now and then: what is sent then is thrown away.
    """

    @property
    def identifier(self) -> str: ...

    @property
    def inputs(self) -> Mapping[str, Array]: ...

    @property
    def parameters(self) -> Mapping[str, bool | int | float | str]: ...

    @property
    def cancelled(self) -> bool: ...

    def send(self, outputs: Mapping[str, Array], *, final: bool = False) -> None:
        """Send a response. It waits while too many are not taken yet.

        Args:
            outputs: by name, with the datatypes and shapes of ``Tensors``. Some may be left out, and in a batched model
                they may have other rows than the request. They belong to the server from now on.
            final: whether it is the last one.

        Raises:
            RuntimeError: the request has had its last response.
        """
        ...

    def fail(self, error: Exception, *, final: bool = True) -> None:
        """Send an error in place of a response.

        Args:
            error: ``InvalidRequest`` if the client is at fault; anything else is the backend's failure.
            final: whether it is the last response.

        Raises:
            RuntimeError: the request has had its last response.
        """
        ...

    def end(self) -> None:
        """Say that there are no further responses; nothing if that was said already."""
        ...


class Responder(Protocol):
    """What answers requests of a decoupled model: an instance of an instance group."""

    def respond(self, requests: Sequence[Request]) -> None:
        """See ``Backend.respond``."""
        ...


class Backend(ABC):
    """One version of a model. It is made without arguments, loaded once, and freed once.

    What any method raises fails this version, or this request, and nothing else; its text is shown, so that it should
    say what to do.

    Attributes:
        interface: the version of the interface that the class is written for. Required; write the number.
        filenames: default names of a model's file, in the version's directory; the first that is there is taken. None
            for a backend that looks into ``Source.directory`` itself.
        quick: whether ``run`` never waits for anything and does not take long. The thread that has received the
            requests may then run a small batch itself, which saves a change of threads. A run that blocks blocks it.
        gpu: whether instances may be asked to run on a GPU.
    """

    interface: ClassVar[int] = 0
    filenames: ClassVar[Sequence[str]] = ()
    quick: bool = False
    gpu: ClassVar[bool] = False

    @abstractmethod
    def load(self, source: Source) -> Tensors:
        """Load the model; returns its tensors. It may block, in a thread of its own, for a bounded time."""

    def instance(self, number: int, device: str) -> Instance | SequenceInstance | Responder:
        """One of ``Source.instances`` instances, which run in parallel.

        By default all are this object, so that ``run``, or ``respond``, is called by several threads at once if there
        are several.

        Args:
            number: of the instance, from 0.
            device: ``auto``, ``cpu`` or ``gpu:N``.
        """
        return self

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Compute a batch.

        Args:
            inputs: by name. They lie in buffers that are used again: they are not to be kept after the return, nor
                returned as outputs without a copy.

        Returns:
            Every output by name, with the datatype of ``Tensors``; other sizes than it tells are sent, with a warning.
            For a batched model each has as many rows as the inputs, in their order.

        Raises:
            InvalidRequest: the client is at fault, and is told so. Requests that were run together are then run one by
                one, so that the others are answered.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither `run` nor instances of its own")

    def run_sequence(self, inputs: Mapping[str, Array], slot: int, *, begins: bool) -> Mapping[str, Array]:
        """Compute a request of a sequence, by a model that keeps a state.

        Args:
            inputs: see ``run``.
            slot: number of the sequence's place in this instance, from 0. While a sequence lasts, no other one has it.
            begins: whether the state has to be a fresh one, whatever the slot's last sequence has left.

        Returns, raises: see ``run``.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither `run_sequence` nor instances of its own")

    def respond(self, requests: Sequence[Request]) -> None:
        """Answer requests of a decoupled model, or begin to.

        A request stays open until its last response (``final``, or ``Request.end``), which may come after the return
        and from another thread; the next requests come meanwhile. Those that are open when this raises get the error.

        Args:
            requests: of a batch, in the order in which they came.

        Raises:
            InvalidRequest: the client is at fault, and is told so.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither `respond` nor instances of its own")

    def free(self) -> None:  # noqa: B027 - nothing to free is the common case
        """Give back what ``load`` took and Python does not free by itself. No run will follow."""
