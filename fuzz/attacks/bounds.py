"""What an attack may cost honest clients, in time, and leave of memory and files: `make attacks` fails beyond it.

Times are measured on a machine that does nothing else, where the attacker, the honest clients and the server share it.
"""

from __future__ import annotations

import math
from typing import Final

from fuzz.attacks.experiment import Outcome

__all__ = ["MOST_P99_MS", "MOST_WORST_MS", "kept_mib", "shortcomings"]

#: What 99 of 100 honest requests may take. Without an attack they take a millisecond, under most attacks some 50.
MOST_P99_MS: Final = 2_000.0
#: What the longest of them may take. A single wait may meet everything that the machine does besides.
MOST_WORST_MS: Final = 5_000.0
#: Those beside whom a model prints wait for it no longer than this.
_PRINTING_P99_MS: Final = 50.0
#: How much longer than before the longest of them may take, beside attacks whose harm are long turns.
_WORST_MORE_MS: Final = dict.fromkeys(
    (
        *("tls-key-changes", "tls-empty-records", "tls-one-byte-records"),
        *("remembered-headers", "dropped-streams", "unknown-loads"),
    ),
    100.0,
)
#: A worker is busy with one of these for a tenth of a second, and attackers send it several at once.
_DEAR: Final = {"gzip-bomb", "deflate-bomb", "repeated-protobuf", "many-dimensions"}
#: What allocators may keep of an attack's peak.
_MOST_GROWTH_MIB: Final = 128.0
#: What these make the server keep is bounded: spare batches by 256 MiB per model, ONNX Runtime's arena by all answers
#: that wait at once, and what allocators keep by the messages of both connections.
_KEPT_MIB: Final = {
    "shape-pollution": 400.0,
    "deaf-reader": 2_000.0,
    "unfinished-uploads": 256.0,
    **dict.fromkeys(("surplus-strings", "many-strings", "typed-strings", "unpacked-numbers"), 256.0),
    "large-rows": 256.0,
    "gzip-bomb": 256.0,
    "deflate-bomb": 256.0,
    "many-ends": 256.0,
    "rest-bomb": 256.0,
    "rest-huge-json": 256.0,
    "rest-left-behind": 256.0,
    "rest-gzip": 256.0,
    "rest-deaf-streams": 256.0,
    "rest-uploads": 256.0,
    "python-bulk": 256.0,
    "ensemble-fan": 384.0,
    "cache-huge": 256.0,
    "endless-ensemble": 256.0,
    "unread-responses": 384.0,
    "warm-up-counts": 256.0,
    "shrinking-regions": 256.0,
    "region-bulk": 768.0,
    "unknown-models": 48.0,
    "first-requests": 48.0,
    "split-ids": 256.0,
    "shadow-bulk": 256.0,
}
#: What these may take while they last, where the harm is that, and not what stays.
_PEAK_MIB: Final = {
    "remembered-headers": 64.0,
    "open-headers": 96.0,
    "rest-remembered-heads": 48.0,
    "rest-unfinished-gzip": 80.0,
}


def kept_mib(name: str) -> float:
    """How much more memory, in MiB, the server may have after this attack."""
    return _KEPT_MIB.get(name, _MOST_GROWTH_MIB)


def shortcomings(name: str, outcome: Outcome) -> list[str]:
    """In which figures an attack's outcome is worse than it may be: a sentence for each."""
    most_p99_ms = _PRINTING_P99_MS if name == "print-flood" else (2 if name in _DEAR else 1) * MOST_P99_MS
    figures = {
        "ms for 99 of 100 honest requests during it": (outcome.during.p99_ms, most_p99_ms),
        "ms for the longest honest request during it": (outcome.during.worst_ms, MOST_WORST_MS),
        "ms more than before for the longest honest request during it": (
            outcome.during.worst_ms - outcome.before.worst_ms,
            _WORST_MORE_MS.get(name, math.inf),
        ),
        "ms for 99 of 100 honest requests after it": (outcome.after.p99_ms, most_p99_ms),
        "MiB more at its peak": (outcome.peak_mib - outcome.before_mib, _PEAK_MIB.get(name, math.inf)),
        "MiB more after it": (outcome.after_mib - outcome.before_mib, kept_mib(name)),
        "files more after it": (outcome.files_after - outcome.files_before, 0),
    }
    return [f"{value:.1f} {what}, above {most:g}" for what, (value, most) in figures.items() if value > most]
