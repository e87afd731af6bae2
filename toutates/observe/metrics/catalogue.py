"""Every metric there is, in one table: the collector makes its families of it, and docs/metrics.md its lines.

Three kinds of names:

- ``inference_*`` and ``loaded_models`` are those of the original Toutates. They have one label, the model: all of its
  versions together, also those that were replaced, so that they never fall while the model is served.
- ``nv_*`` are Triton's, with Triton's labels, types and units, so that its dashboards and autoscalers work unchanged.
  They break rules of Prometheus that were made later: counters without ``_total``, microseconds. Theirs begin at 0 when
  a version is loaded again.
- ``toutates_*`` are ours, ``process_*`` those that every client of Prometheus has.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from toutates.observe.metrics.original_metrics import ORIGINAL
from toutates.observe.metrics.own_metrics import OWN, PROCESS
from toutates.observe.metrics.spec import MetricSpec
from toutates.observe.metrics.triton_metrics import TRITON

__all__ = ["CATALOGUE"]

_ALL: Final[tuple[MetricSpec, ...]] = (*ORIGINAL, *TRITON, *OWN, *PROCESS)

#: Every metric by name, in the order in which it is shown.
CATALOGUE: Final = MappingProxyType({spec.name: spec for spec in _ALL})
