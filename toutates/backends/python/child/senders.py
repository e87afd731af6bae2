"""``InferenceResponseSender`` of ``triton_python_backend_utils``: answers that ``execute`` does not return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from toutates.backends.python.child.errors import TritonModelException, check_process

__all__ = ["DecoupledSender", "ResponseSender"]

_FINAL = 1


class ResponseSender:
    """Sends the one response of a request. Any thread may use it, also after ``execute`` has returned.

    Args:
        wanted: whether somebody still waits for it.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._response: Any = None

    def send(self, response: Any = None, flags: int = 0) -> None:
        """Send the response, and say that it was the last one; together, or one after the other.

        Args:
            response: an InferenceResponse; None for none.
            flags: TRITONSERVER_RESPONSE_COMPLETE_FINAL, or 0 if more follows.
        """
        _check(response, flags)
        with self._lock:
            if self._closed.is_set():
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if response is not None and self._response is not None:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if response is None and self._response is None:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
            if response is not None:
                self._response = response
            if flags:
                self._closed.set()

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return not self._wanted()

    def close(self) -> Any:
        """Take nothing more; returns the response that was sent, or None."""
        with self._lock:
            self._closed.set()
            return self._response

    def wait(self) -> Any:
        """Wait until there will be nothing more; returns the response that was sent, or None."""
        self._closed.wait()
        return self._response


class DecoupledSender:
    """Sends any number of responses of one request. Any thread may use it, also after ``execute`` has returned.

    Args:
        put: takes a response, or the text of an error, or None; and whether it is the last one.
        wanted: whether somebody still waits for responses.
    """

    def __init__(self, put: Callable[[Any, bool], None], wanted: Callable[[], bool]) -> None:
        self._put = put
        self._wanted = wanted
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        """Send a response, or say that there is no further one, or both.

        Args:
            response: an InferenceResponse; None for none.
            flags: TRITONSERVER_RESPONSE_COMPLETE_FINAL, or 0 if more may follow.
        """
        _check(response, flags)
        if response is not None and not hasattr(response, "output_tensors"):
            raise TritonModelException(f"Expected an 'InferenceResponse' object, found type '{type(response)}'.")
        with self._lock:
            if self._is_closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            self._put(response, bool(flags))
            self._is_closed = bool(flags)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for responses any more."""
        return not self._wanted()

    def close(self) -> None:
        """Take nothing more."""
        with self._lock:
            self._is_closed = True

    def fail(self, text: str) -> bool:
        """End the request with an error, unless the model has ended it; returns whether it had not."""
        with self._lock:
            if self._is_closed:
                return False
            self._is_closed = True
            self._put(text, True)
            return True


def _check(response: Any, flags: int) -> None:
    check_process()
    if flags not in (0, _FINAL):
        raise TritonModelException("Unable to send response. Unsupported flag provided.")
    if response is None and not flags:
        raise TritonModelException("Inference Response object must be provided when the response flags is set to zero.")
