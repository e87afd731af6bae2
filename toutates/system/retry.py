"""When a caller that is refused is told to come again: each at a time of its own."""

from __future__ import annotations

import random
from math import ceil
from typing import Final

from toutates.system.errors import QuotaExceeded, RequestError

__all__ = ["SPREAD", "retry_after_ms"]

#: By how much of it a time is longer at most than the error's, so that those who are refused together do not all come
#: back together.
SPREAD: Final = 0.5
#: So many different times there are of one: refusals of the same words are encoded once, and have to be cheap.
_STEPS: Final = 16


def retry_after_ms(error: RequestError) -> int | None:
    """Milliseconds after which the caller may come again; None where nobody can say.

    Those of a quota are exact, because they are the caller's own.
    """
    after_s = error.retry_after_s
    if after_s is None:
        return None
    if not isinstance(error, QuotaExceeded):
        after_s *= 1 + SPREAD * random.randrange(_STEPS) / (_STEPS - 1)
    return ceil(1_000 * after_s)
