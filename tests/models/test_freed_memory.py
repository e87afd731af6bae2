"""Memory that is given back to the system."""

from __future__ import annotations

import ctypes
from typing import Any

from toutates.models.freed_memory import give_back_freed_memory


def test_giving_memory_back_makes_no_classes_that_wait_for_the_garbage_collector() -> None:
    kind: Any = ctypes.CDLL(None)._FuncPtr.__mro__[1]  # of which each handle of a library makes a class
    before = set(kind.__subclasses__())
    for _ in range(3):
        give_back_freed_memory()
    assert [one for one in kind.__subclasses__() if one not in before] == []
