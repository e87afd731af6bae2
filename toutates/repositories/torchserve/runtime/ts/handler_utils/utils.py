"""Helpers of handlers that answer in parts."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["send_intermediate_predict_response"]


def send_intermediate_predict_response(
    ret: Any, req_id_map: Any, message: str, code: int, context: Any = None
) -> NoReturn:
    """Refuse to send a part of an answer.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "answers in parts are not offered to handlers of TorchServe here: return the whole answer, or write a "
        "decoupled Python model"
    )
