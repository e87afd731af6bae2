"""The blocks of code on the pages of the documentation, which tests follow."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["code_blocks"]

DOCS = Path(__file__).resolve().parents[1] / "docs"


def code_blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in a language, in their order.

    Args:
        page: name of the file in docs.
        language: as it stands behind the fence.
    """
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for own, text in found if own == language]
