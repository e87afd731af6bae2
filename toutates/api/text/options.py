"""Members that say how texts are read and cut, as the bodies of several APIs have them, and the options they make."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec

from toutates.api.text.problems import Kind, Problem
from toutates.backends.text.interface import TextOptions

__all__ = ["Cut", "TokenId", "options_of"]

#: The id of a token. Which ids there are is for the model to say; what no tensor holds is refused with the body.
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

_options: Final = lru_cache(256)(TextOptions)


class Cut(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Members of most bodies. The last two are vLLM's, the others TEI's."""

    truncate: bool | None = None
    truncation_direction: str | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    add_special_tokens: bool = True


def options_of(request: Cut, **more: Any) -> TextOptions:
    """The options of a request; the same object for the same ones.

    Args:
        request: says how texts are read and cut.
        more: further ``TextOptions``.

    Raises:
        Problem: it says something that cannot be.
    """
    truncate, most = request.truncate, request.truncate_prompt_tokens
    if most == 0:
        raise Problem(Kind.VALUE, "`truncate_prompt_tokens` must be at least 1, or -1 for the model's limit, got 0",
                      "truncate_prompt_tokens")  # fmt: skip
    if most is not None:
        truncate = True if truncate is None else truncate
        most = None if most < 0 else most
    left = _is_left(request.truncation_direction)
    return _options(
        truncate=truncate,
        truncate_left=left,
        max_tokens=most,
        add_special_tokens=request.add_special_tokens,
        **more,
    )


def _is_left(direction: str | None) -> bool | None:
    if direction is None:
        return None
    if direction.lower() not in ("left", "right"):
        text = f"truncation_direction: expected Left or Right, got '{direction[:20]}'"
        raise Problem(Kind.FORM, text, "truncation_direction")
    return direction.lower() == "left"
