"""A model's code: how it is imported and called, and what it returns."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from toutates.backends.python.child import c_utils, pb_utils
from toutates.backends.python.child.errors import TritonModelException, note_process
from toutates.backends.python.child.logger import Logger
from toutates.backends.python.child.model_config import ModelConfig
from toutates.backends.python.child.requests import RESCHEDULED_TEXT, InferenceResponse, ReceivedRequest
from toutates.backends.python.child.tensors import Tensor
from toutates.system.text import described

__all__ = ["RESCHEDULED", "Model", "OutputForms", "describe"]

#: In place of the answer to a request that the model asks for once more.
RESCHEDULED: Any = object()
_RESCHEDULED_CODE = 8

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Model:
    """One instance of a model.

    Args:
        path: of model.py.
        name: of the instance.
    """

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name
        self._class: Any = None
        self._model: Any = None
        self._loop: Any = None
        #: runs what ``execute`` of a decoupled model leaves to be awaited
        self._tasks: Any = None
        self._enter: Callable[[], None] = lambda: None

    def load(self, version: int, directories: Sequence[str]) -> None:
        """Import model.py.

        Args:
            version: its number.
            directories: where it finds modules of its own.
        """
        note_process()
        sys.modules["triton_python_backend_utils"] = pb_utils
        sys.modules["c_python_backend_utils"] = c_utils
        sys.path[:0] = [directory for directory in directories if directory not in sys.path]
        name = f"{version}.{os.path.splitext(os.path.basename(self._path))[0]}"
        spec = importlib.util.spec_from_file_location(name, self._path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        self._class = getattr(module, "TritonPythonModel", None)
        if self._class is None:
            raise TritonModelException(f"'{os.path.basename(self._path)}' has no class TritonPythonModel")

    def complete(self, config: dict[str, Any], model: str) -> dict[str, Any] | None:
        """The configuration as ``auto_complete_config`` has completed it; None where there is no such method."""
        complete = getattr(self._class, "auto_complete_config", None)
        if complete is None:
            return None
        completed = complete(ModelConfig(config))
        if not isinstance(completed, ModelConfig):
            raise ValueError(
                f"auto_complete_config function in model '{model}' must return a valid pb.ModelConfig object."
            )
        return completed.as_dict()

    def initialize(self, args: dict[str, str]) -> None:
        """Make the instance, and initialize it."""
        self._model = self._class()
        initialize = getattr(self._model, "initialize", None)
        if initialize is not None:
            initialize(args)

    def finalize(self) -> None:
        """Have it finalize itself."""
        if self._tasks is not None:
            self._tasks.end()
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            finalize()

    def answers(self, requests: list[ReceivedRequest], *, one_by_one: bool) -> list[Any]:
        """What the model answers: a response, or the text of an error, for each request.

        Args:
            requests: of a batch.
            one_by_one: whether ``execute`` is called for each of them.
        """
        if not one_by_one or len(requests) == 1:
            return self._call(requests)
        return [outcome for request in requests for outcome in self._call([request])]

    def begin(self, requests: list[ReceivedRequest], *, one_by_one: bool, enter: Callable[[], None]) -> list[int]:
        """Have a decoupled model begin requests, which it answers through their senders.

        Returns:
            The places of those that it asks for once more. Their senders take nothing more.

        Args:
            requests: of a batch; each has its sender.
            one_by_one: whether ``execute`` is called for each of them.
            enter: called by each thread that is made here to run the model's code.
        """
        self._enter = enter
        for some in [[request] for request in requests] if one_by_one else [requests]:
            senders = [request.sender for request in some]
            try:
                execute = getattr(self._model, "execute", None)
                if execute is None:
                    raise TritonModelException(f"Python model {self._path} does not implement `execute` method.")
                returned = execute(some)
                if inspect.isawaitable(returned):
                    self._await(returned, senders)
                elif returned is not None:
                    raise _Wrong(
                        f"Python model '{self._name}' is using the decoupled mode and the execute function must return "
                        "None."
                    )
            except Exception as error:
                self._fail(senders, error)
        again = [at for at, request in enumerate(requests) if request.is_rescheduled]
        for at in again:
            requests[at].sender.close()
        return again

    def _fail(self, senders: Sequence[Any], error: BaseException) -> None:
        """End what the model has not ended. What nobody is told of, because it was raised after that, is logged."""
        text = f"Failed to process the request(s) for model '{self._name}', message: {describe(error)}"
        told = [sender.fail(text) for sender in senders]
        if not all(told):
            Logger.log_error(f"raised after the last response of a request: {describe(error)}")

    def _await(self, coroutine: Any, senders: Sequence[Any]) -> None:
        """Run a coroutine beside those of other batches. What it raises ends its requests."""
        if self._tasks is None:
            self._tasks = _Tasks(self._name, self._enter)

        async def run() -> None:
            try:
                returned = await coroutine
                if returned is not None:
                    raise _Wrong(
                        f"Python model '{self._name}' is using the decoupled mode and the execute function must return "
                        "None."
                    )
            except Exception as error:
                self._fail(senders, error)

        self._tasks.begin(run())

    def _call(self, requests: list[ReceivedRequest]) -> list[Any]:
        try:
            execute = getattr(self._model, "execute", None)
            if execute is None:
                raise TritonModelException(f"Python model {self._path} does not implement `execute` method.")
            responses = execute(requests)
            if type(responses) is not list and inspect.isawaitable(responses):
                if self._loop is None:
                    self._loop = asyncio.new_event_loop()
                responses = self._loop.run_until_complete(responses)
            senders = [request.sender for request in requests]
            if responses is None and None not in senders:
                responses = [None] * len(requests)
            if not isinstance(responses, list):
                raise _Wrong(f"Expected a list in the execute return, found type '{type(responses)}'.")
            if len(responses) != len(requests):
                raise _Wrong(
                    "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                    f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(responses)}\n"
                )
            for response, request, sender in zip(responses, requests, senders):
                if request.is_rescheduled:
                    if response is not None:
                        raise _Wrong(
                            "Expected a None object in the execute function return list for reschduled request, found "
                            f"type '{type(response)}'."
                        )
                elif not isinstance(response, InferenceResponse) and (response is not None or sender is None):
                    raise _Wrong(
                        "Expected an 'InferenceResponse' object in the execute function return list, found type "
                        f"'{type(response)}'."
                    )
        except Exception as error:
            text = f"Failed to process the request(s) for model '{self._name}', message: {describe(error)}"
            # What was sent is sent, and nothing else will be.
            sent = [None if request.sender is None else request.sender.close() for request in requests]
            if any(sent):
                Logger.log_error(f"raised after the response of a request: {describe(error)}")
            return [response or text for response in sent]
        if None in responses or any(senders):
            # What was sent holds, whatever is in the list.
            return [
                RESCHEDULED
                if request.is_rescheduled
                else response
                if sender is None
                else (sender.close() if response else sender.wait()) or response
                for response, request, sender in zip(responses, requests, senders)
            ]
        return list(responses)


class _Tasks:
    """An event loop in a thread of its own.

    Args:
        name: of the instance.
        enter: called by the thread.
    """

    def __init__(self, name: str, enter: Callable[[], None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._enter = enter
        self._thread = threading.Thread(target=self._run, name=f"{name} tasks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._enter()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
            try:
                self._loop.run_until_complete(task)
            except asyncio.CancelledError:
                pass
        self._loop.close()

    def begin(self, coroutine: Any) -> None:
        """Run a coroutine, which raises nothing."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def end(self) -> None:
        """Stop: what has not come to its end is cancelled."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Wrong(Exception):
    """What ``execute`` returned is no answer; the text is complete."""


def describe(error: BaseException) -> str:
    """The text of an error of the model's code, with its lines, as Triton has it. Clients get it."""
    if isinstance(error, _Wrong):
        return str(error)
    text = described(error)
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_HERE)]
    if lines:
        text += "\n\nAt:\n" + "".join(f"  {_file(frame.filename)}({frame.lineno}): {frame.name}\n" for frame in lines)
    return text


def _file(path: str) -> str:
    """A file of Python code for clients, who are not told where it lies: by its path from where it was imported.

    The model's own directory is among those, beside that of its version.
    """
    above = [folder for folder in sys.path if folder and path.startswith(folder.rstrip("/") + "/") and folder != "/"]
    return path[len(min(above, key=len).rstrip("/")) + 1 :] if above else os.path.basename(path)


class OutputForms:
    """The outputs of a model, and how responses become them.

    Args:
        names, datatypes: of the outputs, in the signature's order.
    """

    def __init__(self, names: Sequence[str], datatypes: Sequence[str]) -> None:
        self.datatypes = datatypes
        self._index = {name: at for at, name in enumerate(names)}

    def write(
        self,
        outcomes: Sequence[Any],
        firsts: Sequence[int],
        sizes: Sequence[int],
        places: Sequence[Any],
        *,
        batched: bool,
    ) -> bool:
        """Copy outputs to where they are expected; False where one has another form, or there is an error.

        Args:
            outcomes: of the requests.
            firsts, sizes: first row and rows of each request.
            places: an array of the rows of all requests for each output.
            batched: whether the model is; else the first row of each place is the whole output.
        """
        index_of, whole = self._index, (1 << len(places)) - 1
        for outcome, first, rows in zip(outcomes, firsts, sizes):
            if type(outcome) is not InferenceResponse or outcome._error is not None or outcome._parameters is not None:
                return False
            found = 0
            for tensor in outcome._tensors:
                if type(tensor) is not Tensor:
                    return False
                index = index_of.get(tensor._name)
                if index is None:
                    continue
                place, array = places[index], tensor._array
                if array is None or array.dtype != place.dtype or tensor.datatype != self.datatypes[index]:
                    return False
                part = place[first : first + rows] if batched else place[0, ...]
                if array.shape != part.shape:
                    return False
                part[...] = array
                found |= 1 << index
            if found != whole:  # an output that is given twice stands for no other
                return False
        return True

    def read(self, outcome: Any) -> tuple[list[Any] | None, dict[int, Tensor], dict[str, Any] | None]:
        """What an outcome is: code and text of its error, or None; its outputs, by index; its parameters, or None."""
        if isinstance(outcome, str):
            return [1, outcome], {}, None
        if outcome is RESCHEDULED:
            return [_RESCHEDULED_CODE, RESCHEDULED_TEXT], {}, None
        error = outcome.error()
        if error is not None:
            code = int(error.code())
            return [code if 0 <= code < _RESCHEDULED_CODE else 0, str(error.message())], {}, None
        outputs: dict[int, Tensor] = {}
        for tensor in outcome.output_tensors():
            if not isinstance(tensor, Tensor):
                return [1, f"Expected a 'Tensor' among the outputs, found type '{type(tensor)}'."], {}, None
            index = self._index.get(tensor.name())
            if index is not None:
                outputs[index] = tensor
        return None, outputs, outcome._parameters
