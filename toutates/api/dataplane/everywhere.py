"""Calls that concern all processes of the server, where there are several (``--processes``).

A connection belongs to one process. What changes the server has to be done in each of them, and what adds up has to be
asked of each. The data plane hands such a call to ``Everywhere``, which has it carried out in every process by
``LocalCalls``, this one included, and makes one answer of theirs.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from google.protobuf.message import Message

from toutates.protocol import grpc_service_pb2 as pb
from toutates.protocol.parsing import parse
from toutates.system import errors
from toutates.system.errors import ExecutionFailed, RequestError

__all__ = ["Carry", "Everywhere", "LocalCalls", "Order", "Outcome", "all_statistics", "whole_index"]

_ERRORS: Final[dict[str, type[RequestError]]] = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, RequestError)
}

M = TypeVar("M", bound=Message)


class Order(msgspec.Struct, array_like=True):
    """A call to be carried out in every process.

    Attributes:
        call: the RPC's name.
        request: its message.
        changes: whether it changes something, so that it has to succeed everywhere, and to be done again in a process
            that is started later.
        about: what it changes. Changes of the same are made one after the other, in the same order everywhere.
        whole: whether it says all of what it changes, whatever was said before.
    """

    call: str
    request: bytes
    changes: bool = False
    about: str = ""
    whole: bool = False


class Outcome(msgspec.Struct, array_like=True):
    """What has become of a call in one process.

    Attributes:
        process: its number.
        response: the response message.
        error: the name of the RequestError that it was refused with; "" if it succeeded.
        text: of the error.
        spent_ns: CPU time that the thread took for a call that changes nothing.
    """

    process: int
    response: bytes = b""
    error: str = ""
    text: str = ""
    spent_ns: int = 0


#: Has a call carried out; returns the outcomes, one at least. Raises RequestError where it cannot be.
Carry = Callable[[Order], Awaitable[Sequence[Outcome]]]


class Everywhere:
    """Has calls carried out in all processes. Used on the main thread.

    Args:
        carry: does it.
    """

    def __init__(self, carry: Carry) -> None:
        self._carry = carry

    async def change(self, call: str, request: Message, response: type[M], about: str, *, whole: bool = True) -> M:
        """Have a change made everywhere; returns the first answer, once all have made it.

        Args:
            call: the RPC's name.
            request: its message.
            response: the class of its answer.
            about, whole: see ``Order``.

        Raises:
            RequestError: a process has refused it. Others may have made it, which the text then says.
        """
        order = Order(call, request.SerializeToString(), changes=True, about=about, whole=whole)
        outcomes = await self._carry(order)
        failures = [one for one in outcomes if one.error]
        if failures:
            texts = {one.text for one in failures}
            if len(texts) == 1 and len(failures) == len(outcomes):
                raise _error(failures[0], failures[0].text)
            said = "; ".join(f"process {one.process}: {one.text.rstrip()}" for one in failures)
            done = [str(one.process) for one in outcomes if not one.error]
            others = f"; done in process{'es' if len(done) > 1 else ''} {', '.join(done)}" if done else ""
            raise _error(failures[0], said + others)
        return parse(response, outcomes[0].response)

    async def ask(self, call: str, request: Message, response: type[M]) -> list[tuple[int, M]]:
        """Ask all; returns the number of each process that has answered, and its answer.

        Raises:
            RequestError: every process has refused it.
        """
        outcomes = await self._carry(Order(call, request.SerializeToString()))
        answered = [one for one in outcomes if not one.error]
        if not answered:
            raise _error(outcomes[0], outcomes[0].text)
        return [(one.process, parse(response, one.response)) for one in answered]


def _error(outcome: Outcome, text: str) -> RequestError:
    return _ERRORS.get(outcome.error, ExecutionFailed)(text)


if TYPE_CHECKING:
    #: From a request message to its response message, or to what has to be awaited for it.
    Function = Callable[[Any], Any]


class LocalCalls:
    """Carries calls out in this process. Used on the main thread.

    Args:
        process: its number.
        functions: by the RPC's name the class of its request, and what answers it.
    """

    def __init__(self, process: int, functions: dict[str, tuple[type[Message], Function]]) -> None:
        self._process = process
        self._functions = functions

    async def answer(self, order: Order) -> Outcome:
        """Carry one out."""
        request_type, function = self._functions[order.call]
        began_ns = time.thread_time_ns()
        try:
            request = parse(request_type, order.request)
            order.request = b""  # which may hold a whole model
            response = function(request)
            if isawaitable(response):
                response = await response
        except RequestError as error:
            return Outcome(self._process, error=type(error).__name__, text=str(error))
        answer = response.SerializeToString()
        return Outcome(self._process, answer, spent_ns=0 if order.changes else time.thread_time_ns() - began_ns)


def all_statistics(parts: Sequence[pb.ModelStatisticsResponse]) -> pb.ModelStatisticsResponse:
    """The statistics of several processes, added up; times of the last inference are the latest."""
    sums: dict[tuple[str, str], pb.ModelStatistics] = {}
    for part in parts:
        for one in part.model_stats:
            key = one.name, one.version
            if key in sums:
                _add_statistics(sums[key], one)
            else:
                sums[key] = one
    return pb.ModelStatisticsResponse(model_stats=[sums[key] for key in sorted(sums, key=_by_name_and_number)])


def _by_name_and_number(key: tuple[str, str]) -> tuple[str, int]:
    return key[0], int(key[1])


def _add_statistics(total: pb.ModelStatistics, one: pb.ModelStatistics) -> None:
    total.last_inference = max(total.last_inference, one.last_inference)
    total.inference_count += one.inference_count
    total.execution_count += one.execution_count
    for field in total.inference_stats.DESCRIPTOR.fields:
        _add_duration(getattr(total.inference_stats, field.name), getattr(one.inference_stats, field.name))
    batches = {batch.batch_size: batch for batch in total.batch_stats}
    for batch in one.batch_stats:
        known = batches.get(batch.batch_size)
        if known is None:
            total.batch_stats.append(batch)
            continue
        for name in ("compute_input", "compute_infer", "compute_output"):
            _add_duration(getattr(known, name), getattr(batch, name))
    total.batch_stats.sort(key=lambda batch: batch.batch_size)
    memory = {(usage.type, usage.id): usage for usage in total.memory_usage}
    for usage in one.memory_usage:
        if (usage.type, usage.id) in memory:
            memory[usage.type, usage.id].byte_size += usage.byte_size
        else:
            total.memory_usage.append(usage)
    for place, responses in one.response_stats.items():
        for field in responses.DESCRIPTOR.fields:
            _add_duration(getattr(total.response_stats[place], field.name), getattr(responses, field.name))


def _add_duration(total: pb.StatisticDuration, one: pb.StatisticDuration) -> None:
    total.count += one.count
    total.ns += one.ns


def whole_index(parts: Sequence[tuple[int, pb.RepositoryIndexResponse]]) -> pb.RepositoryIndexResponse:
    """The index as all processes have it: READY is what is so in each; else the first that is not says why."""
    found: dict[tuple[str, str], list[tuple[int, pb.RepositoryIndexResponse.ModelIndex]]] = {}
    for process, part in parts:
        for one in part.models:
            found.setdefault((one.name, one.version), []).append((process, one))
    models = []
    for key in sorted(found, key=lambda key: (key[0], len(key[1]), key[1])):
        told = found[key]
        process, first = next(((process, one) for process, one in told if one.state != "READY"), told[0])
        if first.reason and len({(one.state, one.reason) for _, one in told}) > 1:
            first.reason = f"process {process}: {first.reason}"
        models.append(first)
    return pb.RepositoryIndexResponse(models=models)
