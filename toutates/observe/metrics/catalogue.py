"""Every metric, in one table, from which the collector makes its families and docs/metrics.py its page.

Three kinds of names:

- ``inference_*`` and ``loaded_models`` are those of the original Toutates. Their label is the model, for all of its
  versions together, replaced ones included, so that they never fall while the model is served.
- ``nv_*`` are Triton's, with Triton's labels, types and units, so that its dashboards and autoscalers work unchanged.
  They break rules that Prometheus made later: counters have no ``_total``, and times are in microseconds. They begin at
  0 when a version is loaded again.
- ``toutates_*`` are ours. ``process_*`` are those of every Prometheus client library.
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
