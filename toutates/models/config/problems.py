"""What is wrong with a file of configuration: collected, so that one start of the server shows all there is to mend."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from toutates.system.errors import ConfigurationError, anew

__all__ = ["MAX_PROBLEMS", "Problems"]

_MOST: Final = 100  # that any error has: it is a model's reason in the index as well

MAX_PROBLEMS: Final = 10  # more lines than this are not read, and a hostile file must not flood the log


class Problems:
    """The problems of one file, in the order in which they were found.

    Args:
        source: the file, which each problem names.
        hidden: whether nothing that stands in the file is told, because it may hold secrets.
    """

    def __init__(self, source: Path, *, hidden: bool = False) -> None:
        self._source = source
        self.hidden = hidden
        self._found: list[ConfigurationError] = []

    def add(self, key: str, problem: str, value: object, remedy: str) -> None:
        """Note a problem.

        Args:
            key: where in the file.
            problem: what is wrong there.
            value: what the file has there; None to leave it out.
            remedy: what to write instead.
        """
        value = None if self.hidden else value
        self._found.append(ConfigurationError(problem, source=self._source, key=key, value=value, remedy=remedy))

    def raise_all(self, most: int | None = None) -> None:
        """Raise one error for all problems, or for the first ``most``, with a line each; nothing if there are none.

        Of very many, the first are told in any case, and how many more there are.
        """
        most = min(most or _MOST, _MOST)
        if len(self._found) == 1:
            raise anew(self._found[0])
        if self._found:
            lines = [str(problem) for problem in self._found[:most]]
            if len(self._found) > most:
                lines.append(f"{self._source}: and {len(self._found) - most} more")
            raise ConfigurationError("\n".join(lines))
