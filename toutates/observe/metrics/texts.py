"""The texts of /metrics, one for each format, made for all who ask at about the same time."""

from __future__ import annotations

import trio

from toutates.observe.http.reuse import ReusedText
from toutates.observe.metrics.exposition import Exposition, Format, choose_format

__all__ = ["MetricsTexts"]


class MetricsTexts:
    """Makes and keeps the texts. Used in one Trio run.

    Args:
        metrics: makes them.
    """

    def __init__(self, metrics: Exposition) -> None:
        self._texts = {
            form: ReusedText(lambda form=form: metrics.render(form))  # type: ignore[misc]
            for form in Format
        }
        self._turn = trio.Lock()

    async def get(self, accept: str) -> tuple[str, bytes]:
        """The media type and the text for the value of an Accept field."""
        form = choose_format(accept)
        async with self._turn:  # the texts of both formats take turns, because one scrape runs at a time
            return form.value, await self._texts[form].get()
