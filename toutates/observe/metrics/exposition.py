"""Writes the text of /metrics in the two formats that scrapers ask for, in small pieces.

Between two pieces other threads can have the GIL. The lines are written here, in 0.3 us each, and not by
prometheus_client, which takes 3.5 us, and 8 us in OpenMetrics: a hundred models have 30,000 lines, and scrapes must not
delay the workers. prometheus_client chooses the format for a request, and the tests compare every text with what its
writers and parsers make of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import Final

from prometheus_client import exposition as plain
from prometheus_client.openmetrics import exposition as openmetrics

from toutates.observe.metrics.collector import ServerCollector
from toutates.observe.metrics.families import Distribution, Family, Labels, named_labels
from toutates.observe.metrics.gpu import GpuGauges, load_nvml
from toutates.observe.metrics.host import HostGauges
from toutates.observe.metrics.spec import Kind
from toutates.observe.view import ServerView
from toutates.system.text import writable

__all__ = ["Exposition", "Format", "choose_format", "write_family"]

#: Series in a piece; those of histograms have some 25 lines each.
PIECE_SERIES: Final = 40


class Format(Enum):
    """A format of the text; its value is the media type."""

    TEXT = plain.CONTENT_TYPE_PLAIN_0_0_4
    OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST


def choose_format(accept: str) -> Format:
    """The format for a request's Accept header, as prometheus_client chooses it; TEXT for headers that it cannot read.

    There is one version of each format, and no name needs escaping, so two texts serve all scrapers.
    """
    try:
        content_type = plain.choose_encoder(accept)[1]
    except (TypeError, ValueError):  # raised for versions that are no numbers
        return Format.TEXT
    return Format.OPENMETRICS if content_type.startswith("application/openmetrics-text") else Format.TEXT


class Exposition:
    """Makes the text of a server's metrics. Used by one thread, one text at a time.

    Args:
        view: of the server.
        gpus: gauges of the GPUs; None for those that NVML finds.
    """

    def __init__(self, view: ServerView, *, gpus: GpuGauges | None = None) -> None:
        self._gpus = GpuGauges(load_nvml()) if gpus is None else gpus
        self._collector = ServerCollector(view, HostGauges(), self._gpus)

    async def run(self) -> None:
        """Read the GPUs regularly, because reading may block, until cancelled; returns where there are none."""
        await self._gpus.run()

    def render(self, form: Format) -> Iterator[bytes]:
        """The text in pieces, some of them empty. Between two of them other work may run."""
        took_s = 0.0
        began = time.perf_counter()
        for family in self._collector.scrape():
            for piece in (b"",) if family is None else write_family(family, form):
                took_s += time.perf_counter() - began
                yield piece
                began = time.perf_counter()
        self._collector.render_s = took_s
        if form is Format.OPENMETRICS:
            yield b"# EOF\n"


def write_family(family: Family, form: Format) -> Iterator[bytes]:
    """A family's lines, PIECE_SERIES series at a time; nothing for one without series.

    The lines of samples are the same in both formats.
    """
    head = _head(family, form)
    spec = family.spec
    for start in range(0, len(family.series), PIECE_SERIES):
        lines = [head] if not start else []
        for values, value in family.series[start : start + PIECE_SERIES]:
            labels = _labels(spec.labels, values)
            if isinstance(value, Distribution):
                lines += _histogram(spec.name, labels, value)
            else:
                lines.append(f"{spec.name}{{{labels}}} {value!r}\n" if labels else f"{spec.name} {value!r}\n")
        yield "".join(lines).encode()


def _head(family: Family, form: Format) -> str:
    spec = family.spec
    text = spec.help.replace("\\", r"\\").replace("\n", r"\n")
    if form is Format.OPENMETRICS:
        text = text.replace('"', r"\"")
        name, kind = family.openmetrics_name, family.openmetrics_type
    else:
        name, kind = spec.name, "gauge" if spec.kind is Kind.INFO else spec.kind.value
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _histogram(name: str, labels: str, value: Distribution) -> Iterable[str]:
    more = f",{labels}" if labels else ""
    cumulated = value.cumulated()
    for bound, count in zip(value.bounds, cumulated, strict=True):
        yield f'{name}_bucket{{le="{bound}"{more}}} {count}\n'
    of = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{of} {cumulated[-1]}\n"
    yield f"{name}_sum{of} {value.total!r}\n"


@lru_cache(maxsize=8_192)
def _labels(names: tuple[str, ...], labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in named_labels(names, labels))


def _escaped(value: str) -> str:
    return writable(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
