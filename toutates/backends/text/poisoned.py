"""Where the test mode of ``system.poison`` searches what text models compute.

It is done before anything is divided or normalized, and once more of what texts get: APIs of texts have no port whose
results are searched. A batch in which the pattern is found fails, and its requests are run by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakMethod

import numpy as np

from toutates.backends.text.computing import Computing
from toutates.backends.text.encoder import Encoder, Table
from toutates.backends.text.interface import Float32, SparseVector
from toutates.backends.text.steps import Features
from toutates.system.poison import Poison

__all__ = ["search_computing", "search_encoder"]

P = ParamSpec("P")
R = TypeVar("R")

#: What errors call what the encoder makes, and what a text gets.
_ENCODED: Final = "features"
_GIVEN: Final = "vectors"


def search_encoder(encoder: Encoder, model: str, poison: Poison) -> None:
    """Have what an encoder returns searched; before anything else uses it.

    Args:
        encoder: of the version.
        model: its name, for errors.
        poison: what is searched for.
    """
    if isinstance(encoder, Table):
        encoder.sums = _searching(WeakMethod(encoder.sums), _rows, model, _ENCODED, poison)  # type: ignore[method-assign]
    else:
        encoder.run = _searching(WeakMethod(encoder.run), _of_features, model, _ENCODED, poison)  # type: ignore[method-assign]


def search_computing(computing: Computing, model: str, poison: Poison) -> None:
    """Have what texts get searched. Arguments as of ``search_encoder``."""
    computing.run = _searching(WeakMethod(computing.run), _rows, model, _GIVEN, poison)  # type: ignore[method-assign]
    computing.means = _searching(WeakMethod(computing.means), _rows, model, _GIVEN, poison)  # type: ignore[method-assign]


def _searching(
    make: WeakMethod[Callable[P, R]], rows_of: Callable[[R], Iterable[Any]], model: str, what: str, poison: Poison
) -> Callable[P, R]:
    """What makes the same as ``make`` does, but for what has the pattern.

    It takes the place of that method, and must not keep the method's object until a collection.
    """

    def searched(*arguments: P.args, **more: P.kwargs) -> R:
        method = make()
        assert method is not None
        made = method(*arguments, **more)
        for at, row in enumerate(rows_of(made)):
            parts = (row.indices, row.values) if isinstance(row, SparseVector) else (row,)
            for part in parts:
                if isinstance(part, np.ndarray):  # and no error
                    content = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
                    if poison.is_in_rows(content, len(content), at):
                        raise poison.found_in(model, what)
        return made

    return searched


def _rows(found: Iterable[Any]) -> Iterable[Any]:
    return found


def _of_features(features: Features) -> Iterable[Float32]:
    return features.tokens if features.vectors is None else features.vectors
