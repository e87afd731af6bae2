"""When a caller that is refused is told to come again: each at a time of its own."""

from __future__ import annotations

import random
from math import ceil, log10
from typing import Final

from toutates.system.errors import QuotaExceeded, RequestError

__all__ = ["SPREAD", "retry_after_ms"]

#: By how much of it a time is longer at most than the error's, so that those who are refused together do not all come
#: back together.
SPREAD: Final = 0.5
#: Times are rounded up to one of so many in a decade, 5 % apart: a refusal like an earlier one is encoded already,
#: and refusing has to be cheap.
_PER_DECADE: Final = 48


def retry_after_ms(error: RequestError) -> int | None:
    """Milliseconds after which the caller may come again; None where nobody can say.

    Those of a quota are exact, because they are the caller's own.
    """
    after_s = error.retry_after_s
    if after_s is None:
        return None
    if isinstance(error, QuotaExceeded) or after_s <= 0:
        return ceil(1_000 * after_s)
    after_ms = 1_000 * after_s * (1 + SPREAD * random.random())
    return ceil(10 ** (ceil(_PER_DECADE * log10(after_ms)) / _PER_DECADE))
