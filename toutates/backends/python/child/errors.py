"""What the functions of ``triton_python_backend_utils`` raise."""

from __future__ import annotations

__all__ = ["TritonModelException"]


class TritonModelException(Exception):
    """A function of the module cannot do what it was asked for. Models may raise it too."""
