"""The v1 protocol of KServe and TensorFlow Serving, which is not spoken here: its requests are told where to go."""

from __future__ import annotations

import re
from typing import Final

from toutates.api.rest.answers import Answer, error_answer

__all__ = ["answer_v1"]

_REQUEST: Final = re.compile(
    r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/[^/:]+)?(?P<asks>:[a-z]+|/metadata)?"
)
_MAX_SHOWN: Final = 200


def answer_v1(method: str, path: str) -> Answer | None:
    """The answer to a request of the v1 protocol; None for one that is not of it.

    Args:
        method: of HTTP. OpenAI's API has GET for a model's name, and what else it takes for one.
        path: as it came: what it names is repeated as it has to be written.
    """
    match = _REQUEST.fullmatch(path)
    if match is None or (method != "POST" and not (match["version"] or match["asks"] == "/metadata")):
        return None
    there = f"/v2/models/{match['model'][:_MAX_SHOWN]}"
    if match["version"]:
        there += f"/versions/{match['version'][:_MAX_SHOWN]}"
    if method != "POST":
        meant = f"GET {there}" if match["asks"] else f"GET {there}/ready"
    elif match["asks"] == ":explain":
        meant = f"there are no explanations, and POST {there}/infer infers"
    else:
        meant = f"POST {there}/infer"
    return error_answer(404, f"the v1 protocol is not spoken here; use the v2 protocol: {meant}")
