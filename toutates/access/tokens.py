"""JSON Web Tokens (RFC 7519), from their text to who is meant.

Nothing is read but what says which key it is signed with: issuer, the key's id, and the algorithm. Everything else is
what its issuer has said, or anybody else, until the signature is right. A token has one signature checked at most.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any, Final

from toutates.access.callers import FOR_EVER, Caller, Patterns
from toutates.access.quotas import Quotas
from toutates.access.rules import AccessRules, Issuer
from toutates.system.text import printable

__all__ = ["BadToken", "NotYet", "WrongSignature", "caller_of_token", "looks_like_token"]

#: Texts of a claim that lists groups or models.
MAX_LISTED: Final = 1_000
MAX_SUBJECT: Final = 256
#: Digits of a whole number in a token. Times have ten.
MAX_DIGITS: Final = 20
_NS: Final = 1_000_000_000


class BadToken(Exception):
    """A token is not accepted, and never will be by these rules; the text says why.

    Attributes:
        was_dear: whether its signature was checked to find out.
    """

    was_dear = False


class NotYet(BadToken):
    """A token is not valid yet.

    Args:
        text: says so.
        wait_s: for how long.
    """

    def __init__(self, text: str, wait_s: float) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class WrongSignature(BadToken):
    """A token was not made by its issuer, which took a while to find out."""

    was_dear = True


def looks_like_token(text: str) -> bool:
    """Whether this is header, claims and signature."""
    return text.count(".") == 2


def caller_of_token(text: str, rules: AccessRules, quotas: Quotas, now_s: float, now_ns: int) -> Caller:
    """Who a token is for.

    Args:
        text: the token.
        rules: in force.
        quotas: have the buckets of subjects.
        now_s: the time of day.
        now_ns: the same moment, monotonic.

    Raises:
        BadToken: it is not accepted.
    """
    head, claims = (_part(part) for part in text.split(".")[:2])
    issuer = rules.issuers.get(claims["iss"]) if isinstance(claims.get("iss"), str) else None
    if issuer is None:
        raise BadToken("its issuer is not known here")
    key_id = head.get("kid")
    key = issuer.keys.find(key_id) if key_id is None or isinstance(key_id, str) else None
    if key is None:
        raise BadToken("its issuer has no such key")
    if head.get("alg") != key.algorithm:
        raise BadToken("its algorithm is not that of the key")
    if "crit" in head:
        raise BadToken("it has extensions that are not understood")
    _check_signature(text, key.key, key.algorithm)
    try:
        return _caller_of_claims(claims, issuer, quotas, now_s, now_ns)
    except BadToken as error:
        error.was_dear = True
        raise


def _caller_of_claims(claims: dict[str, Any], issuer: Issuer, quotas: Quotas, now_s: float, now_ns: int) -> Caller:
    ends_s = _check_times(claims, issuer, now_s)
    _check_audience(claims, issuer)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT:
        raise BadToken("it has no subject")
    groups, models = issuer.groups, issuer.models
    if issuer.groups_claim:
        groups &= frozenset(_texts(claims, issuer.groups_claim))
    if issuer.models_claim:
        models = (*models, Patterns(_texts(claims, issuer.models_claim)))
    bucket = None if issuer.quota is None else quotas.bucket((issuer.issuer, subject), issuer.quota)
    left_ns = (ends_s + issuer.leeway_s - now_s) * _NS
    until_ns = FOR_EVER if left_ns > FOR_EVER - now_ns else now_ns + int(left_ns)
    owner = f"{issuer.owner}\x01{subject!r}"  # which has no other control character, whatever the subject has
    return Caller(f"token {printable(subject, MAX_SUBJECT)}", groups, models, bucket, until_ns, owner)


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("more digits than any number of a token has")
    return int(digits)


def _part(text: str) -> dict[str, Any]:
    try:
        read = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), parse_int=_whole)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise BadToken("it cannot be read")
    return read


def _check_times(claims: dict[str, Any], issuer: Issuer, now_s: float) -> float:
    """Check the times; returns when the token ends."""
    times: dict[str, float] = {}
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadToken(f"its claim {name} is no time")
        times[name] = min(max(float(value), 0.0), 1e15)
    if "exp" not in times:
        raise BadToken("it does not say when it ends")
    if times["exp"] + issuer.leeway_s <= now_s:
        raise BadToken("it has expired")
    wait_s = max(times.get("nbf", 0.0), times.get("iat", 0.0)) - issuer.leeway_s - now_s
    if wait_s > 0:
        raise NotYet("it is not valid yet", wait_s)
    return times["exp"]


def _check_audience(claims: dict[str, Any], issuer: Issuer) -> None:
    given = claims.get("aud")
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not any(one in issuer.audiences for one in given if isinstance(one, str)):
        raise BadToken("it is for another audience")


def _check_signature(text: str, key: Any, algorithm: str) -> None:
    import jwt  # here, because a server without tokens needs none of it

    try:
        jwt.PyJWS(algorithms=[algorithm]).decode(text, key, algorithms=[algorithm])
    except Exception:  # PyJWT and cryptography raise many kinds of their own; none of them lets anybody in
        raise WrongSignature("its signature is wrong") from None


def _texts(claims: dict[str, Any], name: str) -> list[str]:
    """A claim that is a list of texts, or texts separated by blanks, as ``scope`` is."""
    value = claims.get(name)
    if isinstance(value, str):
        value = value.split()
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_LISTED or not all(isinstance(one, str) for one in value):
        raise BadToken(f"its claim {printable(name, 100)} is no list of texts")
    return value
