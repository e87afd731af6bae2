"""The text of /metrics, in the two formats that scrapers ask for, made a piece at a time.

The pieces are small, so that whoever sends them can let other threads have the GIL in between. The lines are written
here and not by prometheus_client, which takes 3.5 us for one, in OpenMetrics 8, where 0.3 do: a scraper must not cost
the workers anything, and a hundred models have 30,000 lines. Which format a request gets is prometheus_client's choice,
and the tests hold every text against its writers and parsers.
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

__all__ = ["Exposition", "Format", "choose_format", "write_family"]

#: Series in a piece; those of histograms have some 25 lines each.
PIECE_SERIES: Final = 40


class Format(Enum):
    """What the text can be, by the media type that it is sent with."""

    TEXT = plain.CONTENT_TYPE_PLAIN_0_0_4
    OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST

    @property
    def content_type(self) -> str:
        """The value of the response's Content-Type."""
        return self.value


def choose_format(accept: str) -> Format:
    """The format for a request's Accept, as prometheus_client chooses it; TEXT for whatever it cannot make sense of.

    Of either format there is one version, and no name that would need escaping, so that two texts serve everybody.
    """
    try:
        content_type = plain.choose_encoder(accept)[1]
    except (TypeError, ValueError):  # for versions that are none
        return Format.TEXT
    return Format.OPENMETRICS if content_type.startswith("application/openmetrics-text") else Format.TEXT


class Exposition:
    """See the module. Used by one thread, one text at a time.

    Args:
        view: of the server.
        gpus: None for those that NVML knows.
    """

    def __init__(self, view: ServerView, *, gpus: GpuGauges | None = None) -> None:
        self._gpus = GpuGauges(load_nvml()) if gpus is None else gpus
        self._collector = ServerCollector(view, HostGauges(), self._gpus)

    async def run(self) -> None:
        """Keep fresh what cannot be read at once, which are GPUs, until cancelled; returns where there are none."""
        await self._gpus.run()

    def content_type(self, accept: str) -> str:
        """The media type to answer a request's Accept header with, one of two."""
        return choose_format(accept).content_type

    def render(self, content_type: str) -> Iterator[bytes]:
        """The text of that type in pieces, in order.

        Some are empty; between any two is a good moment to let others have a turn.
        """
        form = Format(content_type)
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
    # A file's name need not be Unicode; the text has to be.
    value = value.encode(errors="replace").decode()
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
