"""The garbage collector of a server whose models come and go with requests.

A full collection visits every object that was made since the start was over: 0.15 s with a thousand small models in
memory, in which no request is answered. It comes whenever a quarter as many objects were made as there are, which are
the models that were loaded last. Models need no collector when they leave, and what else is made for requests is
found by the collections of young objects, which take less than a millisecond. So full ones are made rarely.

Python without the GIL has no young objects, and collects as the number of all grows, which it does not where as many
models leave as come. From Python 3.14 on with the GIL collections are done in small steps.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

__all__ = ["rare_full_collections"]

#: Collections of the middle generation between two full ones. Each comes after 7,000 objects more; a hundred models
#: that are loaded in a second make four of them in that time.
_BETWEEN: Final = 2_500


@contextlib.contextmanager
def rare_full_collections() -> Iterator[None]:
    """Have full collections come rarely while the block runs."""
    young, middle, full = gc.get_threshold()
    gc.set_threshold(young, middle, _BETWEEN)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, full)
