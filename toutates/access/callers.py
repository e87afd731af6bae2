"""A caller who is known: what it may do, with which models, and for how long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import Final

from toutates.access.groups import OF_ALL
from toutates.access.quotas import Bucket
from toutates.system.errors import Forbidden, QuotaExceeded
from toutates.system.spelling import composed

__all__ = ["FOR_EVER", "Caller", "Patterns"]

#: A time, monotonic nanoseconds, that does not come.
FOR_EVER: Final = 2**63
#: Names of models whose verdict is remembered per set of patterns.
MAX_NAMES: Final = 4_096
MAX_SHOWN: Final = 64


class Patterns:
    """Names of models, with ``*``, ``?`` and ``[...]`` as in a shell. Any thread may ask.

    How letters are composed does not matter, because callers find models whatever that is.

    Args:
        texts: patterns; a name has to match one of them.
    """

    __slots__ = ("_known", "_match", "texts")

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        self._match = re.compile("|".join(f"(?:{translate(composed(text))})" for text in texts) or "(?!)").fullmatch
        self._known: dict[str, bool] = {}

    def __contains__(self, name: str) -> bool:
        found = self._known.get(name)
        if found is None:
            found = self._match(composed(name)) is not None
            if len(self._known) >= MAX_NAMES:
                self._known.clear()
            self._known[name] = found
        return found


class Caller:
    """Who sends a request. Never changed, so that all threads may have it.

    Args:
        name: for logs and answers, such as "key search" or "token alice"; never a secret.
        groups: what it may do.
        models: which models it may name, each by all of these; none for every model.
        bucket: of its quota; None for no quota.
        until_ns: when it has to be looked at again, monotonic nanoseconds.
        owner: of what callers own, which nobody else has; "" for the name. It has no NUL. Tokens of one issuer have the
            same text before a ``\\x01``.
    """

    __slots__ = ("bucket", "groups", "models", "name", "owner", "until_ns")

    def __init__(
        self,
        name: str,
        groups: frozenset[str],
        models: tuple[Patterns, ...] = (),
        bucket: Bucket | None = None,
        until_ns: int = FOR_EVER,
        owner: str = "",
    ) -> None:
        self.name = name
        self.groups = groups
        self.models = models
        self.bucket = bucket
        self.until_ns = until_ns
        self.owner = owner or name

    @property
    def identity(self) -> str:
        """What all of its requests have in common; "" for one that is not known."""
        return self.name

    def check_group(self, group: str) -> None:
        """Refuse what the caller may not do.

        Raises:
            Forbidden: it may not.
        """
        if group not in self.groups:
            raise Forbidden(f"{self.name} may not use the group '{group}' of this server")
        if self.models and group in OF_ALL:
            raise Forbidden(f"{self.name} may not use the group '{group}', which is about all models of this server")

    def may_use(self, model: str) -> bool:
        """Whether the caller may name a model."""
        return all(model in patterns for patterns in self.models)

    def check_model(self, model: str, leads_to: Iterable[str] = ()) -> None:
        """Refuse a name that is not the caller's, whether it exists or not, or that leads to models of others.

        Args:
            model: the name.
            leads_to: models that it stands for.

        Raises:
            Forbidden: as for the name itself, so that nobody learns what it leads to.
        """
        if self.models and not (self.may_use(model) and all(map(self.may_use, leads_to))):
            shown = model if len(model) <= MAX_SHOWN else model[:MAX_SHOWN] + "..."
            raise Forbidden(f"{self.name} may not use the model '{shown}'")

    def check_all_models(self) -> None:
        """Refuse what is about all models to a caller who may use some only.

        Raises:
            Forbidden: it may not.
        """
        if self.models:
            raise Forbidden(f"{self.name} may not do this for all models; name one")

    def take(self, rows: int, now_ns: int) -> None:
        """Take an inference out of the caller's quota.

        Raises:
            QuotaExceeded: nothing is left.
        """
        if self.bucket is not None:
            wait_s = self.bucket.take(rows, now_ns)
            if wait_s > 0:
                text = f"{self.name} has used up its quota; try again in {max(wait_s, 0.001):.3f} s"
                raise QuotaExceeded(text, wait_s)
