"""What the functions of ``triton_python_backend_utils`` raise, also in a process that a model has forked."""

from __future__ import annotations

import os

__all__ = ["TritonModelException", "check_process", "note_process"]

_FORKED = (
    "This process was forked by the model, and has no connection to the server: other models are called, and responses "
    "are sent, by the process of the instance alone. Hand the tensors to it."
)
#: the process that models were loaded in
_process = [0]


class TritonModelException(Exception):
    """A function of the module cannot do what it was asked for. Models may raise it too."""


def note_process() -> None:
    """Note that models run in this process."""
    _process[0] = os.getpid()


def check_process() -> None:
    """Raise TritonModelException in a process that a model has forked, where nobody answers."""
    if os.getpid() != _process[0]:
        raise TritonModelException(_FORKED)
