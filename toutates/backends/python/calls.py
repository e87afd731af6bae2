"""Calls of other models by the code of a Python model (Triton's BLS), as rows of these models' batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toutates.backends.python.results import code_of
from toutates.engine.calls import ModelCall, Outcome
from toutates.engine.result import Parameters
from toutates.engine.servable import RequestAbout
from toutates.engine.tensor import Tensor
from toutates.models.held import hold_version
from toutates.models.table import ModelTable, ServedVersion
from toutates.system.errors import InvalidRequest, ModelNotReady, RequestError

__all__ = ["MAX_CALLS", "CallError", "Pending", "begin_call", "is_ready"]

#: Calls of one instance at the same time.
MAX_CALLS: Final = 1_024


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a call has failed.

    Attributes:
        code: of ``TritonError``.
        text: for the model.
    """

    code: int
    text: str


@dataclass(slots=True, eq=False)
class Pending:
    """A call whose outcome may not be there yet.

    Attributes:
        on_done: called with the outcome, in the thread that has run the call. It must not block.
        outputs: name and tensor of each; () if it failed.
        error: why it failed; None if it did not.
        parameters: of the response; None for none.
        is_done: whether the outcome is there.
    """

    on_done: Callable[[], object]
    outputs: Sequence[tuple[str, Tensor]] = ()
    error: CallError | None = None
    parameters: Parameters | None = None
    is_done: bool = False

    def finish(self) -> None:
        """The outcome is there."""
        self.is_done = True
        self.on_done()

    def fail(self, model: str, error: RequestError) -> None:
        """It has failed."""
        text = f"Model {model} - Error when running inference: {error}"
        if isinstance(error, ModelNotReady):
            text = f"Failed for execute the inference request. Model '{model}' is not ready."
        self.error = CallError(code_of(error), text)
        self.finish()


def begin_call(
    get_table: Callable[[], ModelTable],
    model: str,
    version: str,
    inputs: Mapping[str, Tensor],
    names: Sequence[str],
    on_done: Callable[[], object],
    about: RequestAbout | None = None,
) -> Pending:
    """Put rows into another model's batches. What is wrong with the call is its outcome, and nothing raises.

    Args:
        get_table: returns the model table as it is now.
        model, version: who is called; "" for the newest version.
        inputs: by name.
        names: of the outputs that are wanted; none for all.
        on_done: see ``Pending``.
        about: what the call says beside its inputs; None for nothing.
    """
    pending = Pending(on_done)
    try:
        served = hold_version(get_table, model, version)
    except RequestError as error:
        pending.fail(model, error)
        return pending
    try:
        wanted = _indices(served, names)

        def take(outcome: Outcome) -> None:
            try:
                if outcome.error is not None:
                    pending.fail(model, outcome.error)
                    return
                signature = served.signature
                assert outcome.outputs is not None
                pending.parameters = outcome.outputs.parameters
                pending.outputs = [
                    (signature.outputs[index].name, outcome.tensor(index, signature)) for index in wanted
                ]
                pending.finish()
            finally:
                served.calls.let_go()

        call = ModelCall(1, take, tuple(sorted(wanted)))
        if about is not None:
            call.about = lambda: about
        served.calls.call(call, inputs)
    except RequestError as error:
        served.calls.let_go()
        pending.fail(model, error)
    return pending


def _indices(served: ServedVersion, names: Sequence[str]) -> list[int]:
    """The outputs that are wanted, in the order of the model's.

    Raises:
        InvalidRequest: there is none of a name.
    """
    known = [tensor.name for tensor in served.signature.outputs]
    for name in names:
        if name not in known:
            raise InvalidRequest(f"unexpected inference output '{name}' for model '{served.model}'")
    return [index for index, name in enumerate(known) if not names or name in names]


def is_ready(get_table: Callable[[], ModelTable], model: str, version: str) -> bool:
    """Whether a model answers now.

    Raises:
        RequestError: there is no such model, or the version is no number.
    """
    try:
        return get_table().find(model, version).has_code()
    except ModelNotReady:
        return False
