"""From the bytes of an ``Authorization`` field to a caller.

Keys are kept as their SHA-256, and what a caller sends is hashed before it is looked up. So neither the time that takes
nor a dump of the memory tells a key. What was verified is remembered by its hash, and so are tokens that
will never be accepted, apart from the others: a flood of those pushes nobody out.

Rules, and what was remembered under them, are replaced together as a whole.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from toutates.access.callers import FOR_EVER, Caller
from toutates.access.quotas import Quotas
from toutates.access.rules import AccessRules, Issuer
from toutates.access.tokens import BadToken, NotYet, caller_of_token, looks_like_token
from toutates.system.errors import Unauthenticated

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

#: Bytes of an ``Authorization`` field; longer ones are refused unread.
MAX_FIELD_BYTES: Final = 8_192
#: Fields that are remembered, of each kind.
MAX_KNOWN: Final = 16_384
MAX_REFUSED: Final = 4_096

_BEARER: Final = re.compile(rb"bearer +([!-~]+)", re.IGNORECASE)

NO_CREDENTIALS: Final = "The API key is missing; send it, or a token, as 'Authorization: Bearer KEY'"
WRONG_KEY: Final = "The API key is missing or wrong; send it in the header field 'Authorization: Bearer KEY'"


class _Anonymous(Caller):
    """Whoever sends neither key nor token."""

    __slots__ = ()
    identity = ""

    def check_group(self, group: str) -> None:
        """See ``Caller``: one that may become known is told how.

        Raises:
            Unauthenticated: only those who are known may do this.
        """
        if group not in self.groups:
            raise Unauthenticated(NO_CREDENTIALS)


class Era:
    """Rules, and what was found out under them.

    Args:
        rules: the rules.

    Attributes:
        rules: as given.
        known: callers by the hash of what they send.
        refused: by the hash of a token, why it is not accepted, and until when, monotonic.
        anonymous: whoever sends nothing.
        region_holders: owners, as in ``Caller``, of keys and issuers that may register shared memory.
    """

    __slots__ = ("anonymous", "known", "refused", "region_holders", "rules")

    def __init__(self, rules: AccessRules) -> None:
        self.rules = rules
        self.known: dict[bytes, Caller] = {}
        self.refused: dict[bytes, tuple[str, int]] = {}
        self.anonymous = _Anonymous("a caller without key or token", rules.anonymous)
        holders: list[Caller | Issuer] = [*rules.keys.values(), *rules.issuers.values(), self.anonymous]
        self.region_holders = frozenset(holder.owner for holder in holders if "shared-memory" in holder.groups)


class Gate:
    """Knows the callers of one process. Any thread may ask; the main thread has the rules read again.

    Args:
        read: reads the rules.
        wall_s: the time of day.
        now_ns: a monotonic clock.

    Attributes:
        era: what is in force; another object after each change.

    Raises:
        ConfigurationError: the rules cannot be read.
    """

    def __init__(
        self,
        read: Callable[[Quotas], AccessRules],
        wall_s: Callable[[], float] = time.time,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._read = read
        self._wall_s = wall_s
        self._now_ns = now_ns
        self.quotas = Quotas(now_ns)
        self.era = Era(read(self.quotas))

    def reload(self) -> None:
        """Read the rules again.

        Raises:
            ConfigurationError: a file cannot be used; nothing has changed.
        """
        self.era = Era(self._read(self.quotas))
        self.tell()

    def tell(self) -> None:
        """Have the log say what is in force."""
        rules = self.era.rules
        logger.info("access by %s: %d keys, %d issuers of tokens", rules.files[0], len(rules.keys), len(rules.issuers))
        for warning in rules.warnings:
            logger.warning("%s", warning)

    def has_open(self, group: str) -> bool:
        """Whether a group is open to everybody, so that no key or token is looked at. Only ``health`` can be.

        A probe does not fail because its token has expired.
        """
        return group == "health" and group in self.era.rules.anonymous

    def caller_for(self, group: str, field: bytes | None) -> Caller:
        """Who sends a field ``Authorization``, or None, and may do something.

        Raises:
            Unauthenticated: nobody knows.
            Forbidden: it may not.
        """
        if self.has_open(group):
            return self.era.anonymous
        caller = self.caller_of(field)
        caller.check_group(group)
        return caller

    def caller_of(self, field: bytes | None) -> Caller:
        """Who sends a field ``Authorization``, or None.

        Raises:
            Unauthenticated: nobody knows.
        """
        era = self.era
        if not field:
            if not era.rules.anonymous:
                raise Unauthenticated(NO_CREDENTIALS)
            return era.anonymous
        if len(field) > MAX_FIELD_BYTES:
            raise Unauthenticated(f"the field 'Authorization' has more than {MAX_FIELD_BYTES} bytes")
        sent = _BEARER.fullmatch(field)
        if sent is None:
            raise Unauthenticated(WRONG_KEY)
        digest = sha256(sent[1]).digest()  # not of the field, which may have more blanks for the same token
        caller = era.known.get(digest)
        now_ns = self._now_ns()
        if caller is not None and caller.until_ns > now_ns:
            return caller
        reason, until_ns = era.refused.get(digest, ("", 0))
        if until_ns > now_ns:
            raise Unauthenticated(f"The token is not accepted: {reason}")
        caller = self._verify(era, sent[1], digest, now_ns)
        if len(era.known) >= MAX_KNOWN:
            era.known.clear()
        era.known[digest] = caller
        return caller

    def _verify(self, era: Era, sent: bytes, digest: bytes, now_ns: int) -> Caller:
        caller = era.rules.keys.get(digest)
        if caller is not None:
            return caller
        text = sent.decode("ascii")
        if not era.rules.issuers or not looks_like_token(text):
            raise Unauthenticated(WRONG_KEY)
        try:
            return caller_of_token(text, era.rules, self.quotas, self._wall_s(), now_ns)
        except BadToken as error:
            reason = str(error)
            if len(era.refused) >= MAX_REFUSED:
                era.refused.clear()
            # A clock that was wrong may be set right, so that nobody waits for long.
            wait_ns = int(min(error.wait_s, 1.0) * 1e9) if isinstance(error, NotYet) else FOR_EVER
            era.refused[digest] = reason, now_ns + wait_ns
            raise Unauthenticated(f"The token is not accepted: {reason}", was_dear=error.was_dear) from None
