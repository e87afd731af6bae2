"""Calls of other models by the code of a Python model (Triton's BLS), as rows of these models' batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, Protocol
from weakref import ReferenceType, ref

from toutates.backends.python.error_codes import code_of
from toutates.engine.calls import Fitting, ModelCall, Outcome
from toutates.engine.open_request import LEAST_BYTES
from toutates.engine.result import Form, Parameters
from toutates.engine.servable import Content, RequestAbout, view_of
from toutates.engine.tensor import Tensor
from toutates.models.held import hold_version
from toutates.models.table import ModelTable, ServedVersion
from toutates.system.errors import InvalidRequest, ModelNotReady, RequestError

__all__ = [
    "MAX_CALLS",
    "CallError",
    "CallForm",
    "ManyPending",
    "Pending",
    "Response",
    "UnreadResponses",
    "Waits",
    "is_ready",
]

#: Calls of one instance at the same time.
MAX_CALLS: Final = 1_024
#: Whether anybody waits for what a model does now. Called in any thread.
Waits = Callable[[], bool]
#: A code of ``TritonError``.
_INTERNAL: Final = 1
#: More than any caller may leave unread.
_ENDLESS: Final = 2**62


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
        form: of the call.
        on_done: called with this object, in the thread that has run the call. It must not block.
        number: for whoever has made the call.
        given: indices of the outputs that are wanted and there.
        contents: bytes of each; () if it failed.
        row_shapes, forms: of all outputs of the model, as ``Outputs`` has them.
        error: why it failed; None if it did not.
        parameters: of the response; None for none.
        is_done: whether the outcome is there.
        known: of the version that is called; None if there is none.
    """

    form: CallForm
    on_done: Callable[[Pending], object]
    number: int = 0
    given: Sequence[int] = ()
    contents: Sequence[Content] = ()
    row_shapes: tuple[tuple[int, ...], ...] = ()
    forms: Mapping[int, Form] | None = None
    error: CallError | None = None
    parameters: Parameters | None = None
    is_done: bool = False
    known: Known | None = None

    def take(self, outcome: Outcome) -> None:
        """Take the outcome of the call."""
        known = self.known
        assert known is not None
        try:
            if outcome.error is not None:
                self.fail(outcome.error)
                return
            assert outcome.outputs is not None
            batched = known.served.signature.batched
            self.parameters = outcome.outputs.parameters
            self.row_shapes, self.forms = outcome.outputs.row_shapes, outcome.outputs.forms
            missing = outcome.outputs.missing
            self.given = [index for index in known.wanted if index not in missing] if missing else known.wanted
            self.contents = [outcome.content(index, batched=batched) for index in self.given]
            self.is_done = True
            self.on_done(self)
        finally:
            known.served.calls.let_go()

    def fail(self, error: RequestError) -> None:
        """Have the call fail after it was begun, or where it could not be."""
        self.refuse(_call_error(self.form.model, error))

    def refuse(self, error: CallError) -> None:
        """End the call with an error that its caller is told."""
        self.error = error
        self.is_done = True
        self.on_done(self)

    def outputs(self) -> list[tuple[str, Tensor]]:
        """Name and tensor of each output that is wanted; [] if it failed."""
        known = self.known
        if known is None or self.error is not None:
            return []
        signature = known.served.signature
        found = []
        for index, content in zip(self.given, self.contents, strict=True):
            spec = signature.outputs[index]
            if self.forms is not None and index in self.forms:
                found.append((spec.name, Tensor(*self.forms[index], content)))
                continue
            shape = spec.to_wire(self.row_shapes[index])
            whole = (known.fitting.rows, *shape) if signature.batched else shape
            found.append((spec.name, Tensor(spec.datatype, whole, content)))
        return found


@dataclass(frozen=True, slots=True)
class Response:
    """One of the responses of a call that takes many; attributes as of ``Pending``.

    Attributes:
        outputs: name and tensor of each that was wanted and that it has.
        more: whether others may follow.
        size: bytes that it counts as long as the model has not read it.
    """

    outputs: Sequence[tuple[str, Tensor]]
    error: CallError | None
    parameters: Parameters | None
    more: bool
    size: int = LEAST_BYTES


class Account(Protocol):
    """Bytes that are held for peers, and how many may be; a worker's ``MemoryBudget``."""

    used: int
    limit: int


class UnreadResponses:
    """Bytes of responses that the models of this process have called for and not read. Any thread may use it.

    They are in one sum with what workers hold for their peers: what is unread here, workers may not hold. It takes half
    of the limit at most, so that models leave room for peers.
    """

    def __init__(self) -> None:
        self._limit = 2**62
        self._accounts: Sequence[Account] = ()
        self._bytes = 0
        self._lock = threading.RLock()  # the collector may call ``add`` within it, by ``ManyPending.__del__``

    def share(self, accounts: Sequence[Account]) -> None:
        """Be in one sum with ``accounts``, whose limits make that of all together."""
        with self._lock:
            self._limit = sum([account.limit for account in accounts])
            self._accounts = accounts
        self.add(0)

    def add(self, growth: int) -> None:
        """Count bytes; a negative number when they are read."""
        with self._lock:
            self._bytes += growth
            for account in self._accounts:
                account.limit = max(self._limit - self._bytes, 0) // len(self._accounts)

    @property
    def is_full(self) -> bool:
        """Whether whoever leaves something unread gets no more."""
        unread = self._bytes
        return unread > self._limit >> 1 or unread + sum([one.used for one in self._accounts]) > self._limit


@dataclass(slots=True, eq=False)
class ManyPending(Pending):
    """A call that takes any number of responses; ``on_done`` is called for each.

    Attributes:
        responses: those that have come and were not taken yet.
        is_wanted: whether anybody still wants some.
        read_bytes: returns how many bytes of them the model has read, as ``Response.size`` counts them.
    """

    responses: deque[Response] = field(default_factory=deque)
    is_wanted: bool = True
    read_bytes: Callable[[], int] = lambda: 0
    _put_bytes: int = 0
    _counted_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    #: of all of them
    all_unread: ClassVar[UnreadResponses] = UnreadResponses()

    def __del__(self) -> None:
        self.all_unread.add(-self._counted_bytes)

    def unread_bytes(self) -> int:
        """See ``Consumer``."""
        with self._lock:
            unread = max(self._put_bytes - self.read_bytes(), 0)
            growth, self._counted_bytes = unread - self._counted_bytes, unread
        if growth:
            self.all_unread.add(growth)
        return _ENDLESS if unread and self.all_unread.is_full else unread

    def take(self, outcome: Outcome) -> None:
        """Take a response, or the news that no more will come; both may come as one."""
        known = self.known
        assert known is not None
        found: list[tuple[str, Tensor]] = []
        error, outputs = None, outcome.outputs
        try:
            if outcome.error is not None:
                error = _call_error(self.form.model, outcome.error)
            elif outputs is not None:
                signature = known.served.signature
                wanted = [index for index in known.wanted if index not in outputs.missing]
                found = [(signature.outputs[index].name, outcome.tensor(index, signature)) for index in wanted]
            parameters = None if outputs is None else outputs.parameters
            if outcome.more and not self.is_wanted:
                return
            size = max(sum([len(view_of(tensor.content)) for _, tensor in found]), LEAST_BYTES)
            self._put(Response(found, error, parameters, outcome.more, size))
        finally:
            if not outcome.more:
                known.served.calls.let_go()

    def fail(self, error: RequestError) -> None:
        """Have the call fail before there was a response."""
        self._put(Response((), _call_error(self.form.model, error), None, False))

    def _put(self, response: Response) -> None:
        self.responses.append(response)
        self._put_bytes += response.size
        self.is_done = not response.more
        self.on_done(self)


@dataclass(slots=True, eq=False, kw_only=True)
class _ManyCall(ModelCall):
    """The call of a ``ManyPending``."""

    pending: ManyPending

    def unread_bytes(self) -> int:
        """See ``Consumer``."""
        return self.pending.unread_bytes()


class Known(NamedTuple):
    """What was found for a form of calls: it holds as long as the model table is the same.

    Attributes:
        table: that one, which is not kept for it.
        served: the version that is called.
        fitting: of the inputs.
        wanted: indices of the outputs that are wanted.
    """

    table: ReferenceType[ModelTable]
    served: ServedVersion
    fitting: Fitting
    wanted: tuple[int, ...]


class CallForm:
    """Calls of one model with inputs of certain names, datatypes and shapes. Any thread may use it.

    They are checked once, and again when another model table is there.

    Args:
        model, version: who is called; "" for the newest version.
        inputs: name, datatype's name and shape of each.
        names: of the outputs that are wanted; none for all.

    Attributes:
        model: as given.
    """

    __slots__ = ("_inputs", "_known", "_names", "_version", "model")

    def __init__(
        self, model: str, version: str, inputs: Sequence[tuple[str, str, tuple[int, ...]]], names: Sequence[str]
    ) -> None:
        self.model = model
        self._version = version
        self._inputs = inputs
        self._names = names
        self._known: Known | None = None

    def begin(
        self,
        get_table: Callable[[], ModelTable],
        contents: Sequence[Content],
        on_done: Callable[[Pending], object],
        number: int = 0,
        about: RequestAbout | None = None,
        *,
        waits: Waits | None = None,
        caller: object = None,
        is_many: bool = False,
    ) -> Pending:
        """Put rows into the model's batches. What is wrong with the call is its outcome, and nothing raises.

        Args:
            get_table: returns the model table as it is now.
            contents: bytes of each input; their lengths fit the shapes.
            on_done, number: see ``Pending``.
            about: what the call says beside its inputs; None for nothing.
            waits: whether anybody waits for what the model does that calls; None for a model of which nobody knows
                that. Where nobody does, what has not begun is not begun, but for steps of a sequence, which would be
                left without them.
            caller: see ``Consumer``: the instance that calls, for a batch may have requests of several.
            is_many: whether it takes any number of responses, as decoupled models have them: a ``ManyPending``.
        """
        pending = ManyPending(self, on_done, number) if is_many else Pending(self, on_done, number)
        try:
            known = self._held(get_table)
        except RequestError as error:
            pending.fail(error)
            return pending
        if known.served.decoupled and not is_many:
            known.served.calls.let_go()
            pending.refuse(_one_only(self.model))
            return pending
        pending.known = known
        if isinstance(pending, ManyPending):
            call: ModelCall = _ManyCall(known.fitting.rows, pending.take, known.wanted, pending=pending)
            call.is_wanted = lambda by_ns: pending.is_wanted
        else:
            call = ModelCall(known.fitting.rows, pending.take, known.wanted)
            if waits is not None and (about is None or "sequence_id" not in about.parameters):
                call.is_wanted = lambda by_ns: waits()
        call.caller = caller
        if about is not None:
            call.about = lambda: about
        try:
            known.served.calls.submit(call, known.fitting.shapes, [contents[at] for at in known.fitting.order])
        except RequestError as error:
            known.served.calls.let_go()
            pending.fail(error)
        return pending

    def _held(self, get_table: Callable[[], ModelTable]) -> Known:
        """What is known of the calls; the version is held.

        Raises:
            RequestError: there is no such version, or the inputs do not fit it.
        """
        known = self._known
        table = get_table()
        if known is not None and known.table() is table and known.served.calls.hold():
            return known
        served = hold_version(get_table, self.model, self._version)
        try:
            wanted = _indices(served, self._names)
            known = self._known = Known(ref(table), served, served.calls.check(self._inputs), wanted)
        except RequestError:
            served.calls.let_go()
            raise
        return known


def _call_error(model: str, error: RequestError) -> CallError:
    """What a model hears of an error of the one that it calls."""
    text = f"Model {model} - Error when running inference: {error}"
    if isinstance(error, ModelNotReady):
        text = f"Failed for execute the inference request. Model '{model}' is not ready."
    return CallError(code_of(error), text)


def _one_only(model: str) -> CallError:
    """What a model hears that takes one response, of a model that has any number of them."""
    return CallError(
        _INTERNAL,
        f"Model {model} is using the decoupled. The current BLS request call doesn't support models using the "
        "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for "
        "decoupled models.'",
    )


def _indices(served: ServedVersion, names: Sequence[str]) -> tuple[int, ...]:
    """The outputs that are wanted, in the order of the model's.

    Raises:
        InvalidRequest: there is none of a name.
    """
    known = [tensor.name for tensor in served.signature.outputs]
    for name in names:
        if name not in known:
            raise InvalidRequest(f"unexpected inference output '{name}' for model '{served.model}'")
    return tuple([index for index, name in enumerate(known) if not names or name in names])


def is_ready(get_table: Callable[[], ModelTable], model: str, version: str) -> bool:
    """Whether a model answers now.

    Raises:
        RequestError: there is no such model, or the version is no number.
    """
    try:
        return get_table().find(model, version).has_code()
    except ModelNotReady:
        return False
