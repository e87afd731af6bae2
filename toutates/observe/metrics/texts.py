"""The texts of /metrics, one for each format, made for all who ask at about the same time."""

from __future__ import annotations

import zlib
from typing import Final

import trio

from toutates.observe.http.reuse import ReusedText
from toutates.observe.metrics.exposition import Exposition, Format, choose_format

__all__ = ["MetricsTexts"]


#: Bytes that are compressed at once, in a millisecond.
_AT_ONCE: Final = 131_072


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
        #: by media type, a text and what it was compressed to
        self._compressed: dict[str, tuple[bytes, bytes]] = {}

    async def get_gzip(self, accept: str) -> tuple[str, bytes]:
        """The same, the text compressed; once for all who ask while the text is the same."""
        content_type, text = await self.get(accept)
        known = self._compressed.get(content_type)
        if known is None or known[0] is not text:
            # Level 1: of the series' names little is left by then, and others take three times as long.
            packer, pieces = zlib.compressobj(1, wbits=31), []
            for start in range(0, len(text), _AT_ONCE):
                pieces.append(packer.compress(memoryview(text)[start : start + _AT_ONCE]))
                await trio.lowlevel.checkpoint()
            known = self._compressed[content_type] = text, b"".join((*pieces, packer.flush()))
        return content_type, known[1]

    async def get(self, accept: str) -> tuple[str, bytes]:
        """The media type and the text for the value of an Accept field."""
        form = choose_format(accept)
        async with self._turn:  # the texts of both formats take turns, because one scrape runs at a time
            return form.value, await self._texts[form].get()
