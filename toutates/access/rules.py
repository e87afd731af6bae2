"""The access file (``--access-file``), from YAML to an immutable record. docs/access.md describes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from toutates.access.callers import Caller, Patterns
from toutates.access.groups import GROUPS, OF_ALL
from toutates.access.jwks import Jwks, read_jwks
from toutates.access.quotas import Quota, Quotas
from toutates.models.config.problems import Problems
from toutates.models.config.yaml_reader import read_mapping
from toutates.models.config.yaml_section import Section
from toutates.system.errors import ConfigurationError

__all__ = ["FLAG", "AccessRules", "Issuer", "read_rules"]

FLAG: Final = "--access-file"
MAX_PER_SECOND: Final = 1e9
MAX_BURST_S: Final = 3_600.0
MAX_LEEWAY_S: Final = 3_600.0

_GROUPS_EXAMPLE: Final = "[inference, metadata]"
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_NAME: Final = re.compile(r"[ -~]{1,100}")
_PATTERN: Final = re.compile(r".{1,256}")


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens are taken, and what they allow.

    Attributes:
        issuer: ``iss`` of its tokens.
        audiences: one of them is in ``aud`` of its tokens.
        keys: its public keys.
        leeway_s: by how much its clock and ours may differ.
        groups: what its tokens let do, at most.
        models: which models; none for every model.
        groups_claim, models_claim: claims that narrow that down, token by token; "" for none.
        quota: of each subject; None for none.
    """

    issuer: str
    audiences: tuple[str, ...]
    keys: Jwks
    leeway_s: float
    groups: frozenset[str]
    models: tuple[Patterns, ...]
    groups_claim: str
    models_claim: str
    quota: Quota | None

    @property
    def owner(self) -> str:
        """How the owners of all of its tokens begin, before a ``\\x01`` (``Caller.owner``)."""
        return f"issuer {self.issuer!r}"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may do what.

    Attributes:
        keys: by the SHA-256 of a key, who has it.
        issuers: by ``iss``, whose tokens are taken.
        anonymous: what callers without key and token may do.
        files: that all of this was read from.
        warnings: what will be refused and may not be meant so, a sentence each.
    """

    keys: Mapping[bytes, Caller] = field(default_factory=dict)
    issuers: Mapping[str, Issuer] = field(default_factory=dict)
    anonymous: frozenset[str] = frozenset()
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


def read_rules(source: Path, quotas: Quotas) -> AccessRules:
    """Read the file, and those that it names.

    Args:
        source: the file.
        quotas: have the buckets of its clients.

    Raises:
        ConfigurationError: something cannot be read or used; a line for each mistake.
    """
    values = read_mapping(source, hidden=True)
    if values is None:
        raise ConfigurationError("there is no such file", key=FLAG, value=str(source), remedy="correct the path")
    problems = Problems(source, hidden=True)
    top = Section(values, problems)
    anonymous = _groups(top, "anonymous")
    keys: dict[bytes, Caller] = {}
    names: set[str] = set()
    for section in top.sections("keys", "keys: [{name: search, sha256: HEX, groups: [inference]}]"):
        name = section.text("name", "search")
        if not _NAME.fullmatch(name) or name in names:
            remedy = "give each key a name of its own, of up to 100 printable ASCII characters"
            section.refuse("name", "is not the name of one key", name, remedy)
        names.add(name)
        quota = _quota(section)
        caller = Caller(
            f"key {name}",
            _required_groups(section),
            _models(section),
            None if quota is None else quotas.bucket(("key", name), quota),
        )
        # What stands there may be the key itself.
        remedy = "write what `printf %s KEY | sha256sum` prints"
        problem = "is not the SHA-256 of a key, 64 hexadecimal digits"
        digest = section.hidden_text("sha256", _DIGEST.fullmatch, problem, remedy)
        if digest and keys.setdefault(bytes.fromhex(digest), caller) is not caller:
            section.refuse("sha256", "belongs to another key too", None, "give each client a key of its own")
        section.refuse_unknown_keys()
    files = [source]
    issuers: dict[str, Issuer] = {}
    for section in top.sections("tokens", "tokens: [{issuer: ..., audience: ..., jwks: FILE, groups: [inference]}]"):
        issuer = _issuer(section, source, problems, files)
        if issuers.setdefault(issuer.issuer, issuer) is not issuer:
            section.refuse("issuer", "has two entries", issuer.issuer, "put both into one")
    top.refuse_unknown_keys()
    if not (keys or issuers or values.get("keys") or values.get("tokens")):
        problems.add("keys", "nobody is let in", None, "add a key under `keys`, or an issuer under `tokens`")
    problems.raise_all()
    given = [(f"keys[{at}]", one.groups, bool(one.models)) for at, one in enumerate(keys.values())]
    given += [
        (f"tokens[{at}]", one.groups, bool(one.models or one.models_claim)) for at, one in enumerate(issuers.values())
    ]
    warnings = tuple(
        f"{source}: {who} may use some models only, and is refused the groups {', '.join(sorted(refused))}, which are "
        "about all; leave out `models`, or these groups"
        for who, groups, is_limited in given
        if is_limited and (refused := groups & OF_ALL)
    )
    return AccessRules(keys, issuers, anonymous, tuple(files), warnings)


def _issuer(section: Section, source: Path, problems: Problems, files: list[Path]) -> Issuer:
    if section.is_list("audience"):
        audiences = section.texts("audience", "toutates")
    else:
        audiences = (section.text("audience", "toutates") if section.has("audience") else "",)
    if not audiences or not all(audiences):
        remedy = "add what the issuer writes into `aud` for this server, such as `audience: toutates`"
        section.refuse("audience", "required key is missing or empty", None, remedy)
    keys = Jwks()
    if section.has("jwks"):
        if name := section.hidden_text("jwks", bool, "is not a text", "write a text, such as `jwks: jwks.json`"):
            files.append(source.parent / name)
            keys = read_jwks(files[-1], problems)
    else:
        section.refuse("jwks", "required key is missing", None, "add the file of the issuer's public keys")
    leeway_s = section.optional_number("leeway_seconds", MAX_LEEWAY_S, 30)
    if not section.has("issuer"):
        section.refuse("issuer", "required key is missing", None, "add what the issuer writes into `iss`")
    read = Issuer(
        section.text("issuer", "https://issuer.example"),
        audiences,
        keys,
        30.0 if leeway_s is None else leeway_s,
        _required_groups(section),
        _models(section),
        section.text("groups_claim", "groups") if section.has("groups_claim") else "",
        section.text("models_claim", "models") if section.has("models_claim") else "",
        _quota(section),
    )
    section.refuse_unknown_keys()
    return read


def _groups(section: Section, key: str) -> frozenset[str]:
    groups = section.texts(key, _GROUPS_EXAMPLE)
    for group in groups:
        if group not in GROUPS:
            near = get_close_matches(group, GROUPS, n=1)
            meant = f"did you mean `{near[0]}`? " if near else ""
            section.refuse(key, "there is no such group", None, f"{meant}choose from {', '.join(GROUPS)}")
    return frozenset(groups)


def _required_groups(section: Section) -> frozenset[str]:
    groups = _groups(section, "groups")
    if not groups:
        remedy = f"say what may be done, such as `groups: {_GROUPS_EXAMPLE}`"
        section.refuse("groups", "names no group", None, remedy)
    return groups


def _models(section: Section) -> tuple[Patterns, ...]:
    if not section.has("models"):
        return ()
    texts = section.texts("models", '[ranker, "embed-*"]', lambda text: _PATTERN.fullmatch(text) is not None)
    if not texts:
        remedy = 'name models, such as `models: [ranker, "embed-*"]`, or leave the key out for all'
        section.refuse("models", "names no model", None, remedy)
    return (Patterns(texts),)


def _quota(section: Section) -> Quota | None:
    values = section.mapping("quota", "quota: {requests_per_second: 100}")
    if values is None:
        return None
    requests, rows = (_rate(values, key) for key in ("requests_per_second", "rows_per_second"))
    burst_s = values.optional_number("burst_seconds", MAX_BURST_S, 1)
    if requests is None and rows is None:
        remedy = "add `requests_per_second` or `rows_per_second`, or leave the quota out"
        section.refuse("quota", "bounds nothing", None, remedy)
    values.refuse_unknown_keys()
    return Quota(requests, rows, 1.0 if burst_s is None else burst_s)


def _rate(section: Section, key: str) -> float | None:
    rate = section.optional_number(key, MAX_PER_SECOND, 100)
    if rate == 0:
        remedy = "leave out the group `inference` for a client that may compute nothing, or write a number above 0"
        section.refuse(key, "would let nothing in", 0, remedy)
        return 1.0
    return rate
