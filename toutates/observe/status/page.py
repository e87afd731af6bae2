"""The pages: one HTML file each, and a Content-Security-Policy that lets a browser run only what is in the file."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

__all__ = ["Page", "load_page", "make_page"]

_INLINE = re.compile(r"<(script|style)>((?:[^<]|<(?!/?(?:script|style)>))*+)</\1>")


@dataclass(frozen=True, slots=True)
class Page:
    """A page and its Content-Security-Policy."""

    html: bytes
    policy: str


def load_page(name: str, data: Mapping[str, str] | None = None, *, own_images: bool = False) -> Page:
    """A page of this package.

    Args:
        name: of its file.
        data: by NAME, the text to put in place of ``__NAME__``; it must not end the element that it stands in.
        own_images: whether it shows images of the same server.
    """
    return make_page((files(__package__) / name).read_text(encoding="utf-8"), data, own_images=own_images)


def make_page(
    text: str, data: Mapping[str, str] | None = None, *, own_files: bool = False, own_images: bool = False
) -> Page:
    """A page of its text.

    Args:
        text: HTML.
        data: as for ``load_page``.
        own_files: whether scripts and styles may also come from files of the same server.
        own_images: whether images may.
    """
    # Scripts and styles are allowed by their hashes. ``data`` is put in afterwards: a script in it would not run.
    own = ["'self'"] if own_files else []
    hashes: dict[str, list[str]] = {"script": [*own], "style": [*own]}
    for kind, content in _INLINE.findall(text):
        hashes[kind].append(f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'")
    for key, value in (data or {}).items():
        text = text.replace(f"__{key}__", value)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(hashes['script'])}",
            f"style-src {' '.join(hashes['style'])}",
            "connect-src 'self'",
            "img-src 'self' data:" if own_images else "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return Page(text.encode(), policy)
