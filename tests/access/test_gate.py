"""From the bytes of an Authorization field to a caller, with a clock that the test sets."""

from __future__ import annotations

import base64
import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.access.support import Clock, open_gate
from tests.access.tokens import ISSUER, NOW_S, bearer, digest, private_key, public_jwk, token, write_keys
from tests.optional import skip_without
from toutates.access import gate as module
from toutates.access import tokens
from toutates.access.callers import Caller
from toutates.access.gate import Gate
from toutates.access.rules import read_rules
from toutates.access.worker_gate import Visit, WorkerGate
from toutates.h2grpc.header_field import make_field
from toutates.h2grpc.request_head import RequestHead
from toutates.system.errors import ConfigurationError, Forbidden, QuotaExceeded, Unauthenticated

skip_without("jwt")

RULES = f"""
anonymous: [health]
keys:
  - {{name: search, sha256: {digest("sk-search")}, groups: [inference], models: ["m*"]}}
tokens:
  - issuer: {ISSUER}
    audience: toutates
    jwks: jwks.json
    leeway_seconds: 10
    groups: [inference, metadata]
    models: ["m*"]
    groups_claim: scope
    models_claim: models
    quota: {{requests_per_second: 1}}
"""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(tmp_path: Path, clock: Clock) -> Gate:
    write_keys(tmp_path, [public_jwk("rsa"), public_jwk("ec")])
    path = tmp_path / "access.yaml"
    path.write_text(RULES)
    return open_gate(path, clock)


def refusal(gate: Gate, field: bytes | None) -> str:
    with pytest.raises(Unauthenticated) as error:
        gate.caller_of(field)
    return str(error.value)


def test_a_key_is_known_in_any_spelling_of_bearer_and_no_other_text_is(gate: Gate) -> None:
    for field in (b"Bearer sk-search", b"bearer  sk-search", b"BEARER sk-search"):
        caller = gate.caller_of(field)
        assert (caller.name, set(caller.groups)) == ("key search", {"inference"})
    for field in (
        b"sk-search",
        b"Bearer",
        b"Bearer sk-searc",
        b"Basic sk-search",
        b"Bearer \xff",
    ):
        assert "missing or wrong" in refusal(gate, field)
    assert gate.caller_of(None) is gate.caller_of(b"")
    with pytest.raises(Unauthenticated):
        gate.caller_of(None).check_group("inference")
    gate.caller_of(None).check_group("health")
    assert gate.caller_for("health", b"Bearer wrong") is gate.caller_of(None)


def test_a_token_says_who_and_narrows_what(gate: Gate, clock: Clock) -> None:
    caller = gate.caller_of(bearer(token(scope="inference logging", models=["mlp", "x*"])))
    assert caller.name == "token alice"
    assert caller.groups == {"inference"}
    assert [caller.may_use(name) for name in ("mlp", "mx", "xx")] == [True, False, False]
    with pytest.raises(Forbidden, match="token alice may not use the model 'mx'"):
        caller.check_model("mx")
    with pytest.raises(Forbidden, match="token alice may not use the group 'metadata'"):
        caller.check_group("metadata")
    caller.take(1, clock.now_ns)
    # Another token of the same subject has the same quota, one of another subject has its own.
    with pytest.raises(QuotaExceeded) as error:
        gate.caller_of(bearer(token("ec", "ES256", scope="inference"))).take(1, clock.now_ns)
    assert error.value.retry_after_s == pytest.approx(1.0)
    gate.caller_of(bearer(token(sub="bob", scope="inference"))).take(1, clock.now_ns)
    nothing = gate.caller_of(bearer(token()))
    assert nothing.groups == set()
    assert not nothing.may_use("mlp")


def unsigned(head: Any, **claims: Any) -> str:
    said = {"iss": ISSUER, "aud": "toutates", "sub": "alice", "exp": NOW_S + 600, **claims}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (head, said)]
    return ".".join((*parts, ""))


def hmac_with_the_public_key() -> str:
    pem = private_key("rsa").public_key().public_bytes(*_pem_arguments())
    signed = unsigned({"alg": "HS256", "kid": "rsa", "typ": "JWT"})
    import hashlib
    import hmac

    signature = hmac.new(pem, signed.rstrip(".").encode(), hashlib.sha256).digest()
    return signed + base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


def _pem_arguments() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return Encoding.PEM, PublicFormat.SubjectPublicKeyInfo


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: unsigned({"alg": "none", "kid": "rsa"}), "its algorithm is not that of the key"),
        (lambda: unsigned({"kid": "rsa"}), "its algorithm is not that of the key"),
        (hmac_with_the_public_key, "its algorithm is not that of the key"),
        (lambda: token(algorithm="RS512"), "its algorithm is not that of the key"),
        (lambda: token(head={"kid": "nobody"}), "its issuer has no such key"),
        (lambda: unsigned({"alg": "RS256", "kid": 5}), "its issuer has no such key"),
        (lambda: unsigned({"alg": "RS256"}), "its issuer has no such key"),
        (lambda: token("other", head={"kid": "rsa"}), "its signature is wrong"),
        (lambda: token() + "x", "its signature is wrong"),
        (lambda: unsigned({"alg": "RS256", "kid": "rsa"}), "its signature is wrong"),
        (lambda: unsigned({"alg": "RS256", "kid": "rsa", "crit": ["b64"]}), "it has extensions"),
        (lambda: token(iss="https://evil.example"), "its issuer is not known here"),
        (lambda: unsigned({"alg": "RS256", "kid": "rsa"}, iss=[]), "its issuer is not known here"),
        (lambda: token(aud="other"), "it is for another audience"),
        (lambda: token(aud=None), "it is for another audience"),
        (lambda: token(exp=None), "it does not say when it ends"),
        (lambda: token(exp=int(NOW_S) - 11), "it has expired"),
        (lambda: unsigned({"alg": "RS256", "kid": "rsa"}, exp=0), "its signature is wrong"),
        (lambda: unsigned({"alg": "RS256", "kid": "rsa"}, exp=10**400), "it cannot be read"),
        (lambda: token(exp=True), "its claim exp is no time"),
        (lambda: token(exp=float("nan")), "its claim exp is no time"),
        (lambda: token(exp=1e999), "its claim exp is no time"),
        (lambda: token(nbf=int(NOW_S) + 11), "it is not valid yet"),
        (lambda: token(iat=int(NOW_S) + 11), "it is not valid yet"),
        (lambda: token(sub=None), "it has no subject"),
        (lambda: token(sub="x" * 300), "it has no subject"),
        (lambda: token(scope=7), "its claim scope is no list of texts"),
        (lambda: "a.b.c", "it cannot be read"),
        (lambda: "..", "it cannot be read"),
        (lambda: "W10.W10.W10", "it cannot be read"),
        (lambda: base64.b64encode(b"[" * 3_000).decode() + ".e30.", "it cannot be read"),
    ],
)
def test_a_token_that_is_not_in_order_is_refused_with_the_reason(gate: Gate, made: Any, reason: str) -> None:
    assert reason in refusal(gate, bearer(made()))


def test_clocks_may_differ_by_the_leeway(gate: Gate, clock: Clock) -> None:
    gate.caller_of(bearer(token(exp=int(NOW_S) - 9, nbf=int(NOW_S) + 9)))
    early = bearer(token(nbf=int(NOW_S) + 20))
    assert "not valid yet" in refusal(gate, early)
    clock.pass_s(11)
    gate.caller_of(early)  # which is not remembered as refused


def test_a_remembered_token_ends_when_it_says(gate: Gate, clock: Clock) -> None:
    field = bearer(token(exp=int(NOW_S) + 60))
    caller = gate.caller_of(field)
    clock.pass_s(69)
    assert gate.caller_of(field) is caller
    clock.pass_s(2)
    assert "it has expired" in refusal(gate, field)


def test_workers_ask_again_when_a_token_ends(gate: Gate, clock: Clock) -> None:
    field = bearer(token(exp=int(NOW_S) + 60, scope="inference"))
    worker = WorkerGate(gate, clock)
    visit = Visit(worker, field, "inference")
    heads = RequestHead((make_field(b"te", b"trailers"), make_field(b"authorization", field)))
    assert worker.caller_of_head(heads) is visit.caller
    clock.pass_s(71)
    with pytest.raises(Unauthenticated, match="it has expired"):
        worker.caller_of_head(heads)
    with pytest.raises(Unauthenticated, match="it has expired"):
        visit.caller  # noqa: B018  # asks
    twice = RequestHead((make_field(b"authorization", field),) * 2)
    with pytest.raises(Unauthenticated, match="more than once"):
        worker.caller_of_head(twice)


def test_signatures_are_checked_once_per_token_whatever_becomes_of_it(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    check = tokens._check_signature

    def count(text: str, key: object, algorithm: str) -> None:
        checked.append(text)
        check(text, key, algorithm)

    monkeypatch.setattr(tokens, "_check_signature", count)
    good, bad = token(), token("other", head={"kid": "rsa"})
    late, early = token(exp=int(NOW_S) - 100), token(nbf=int(NOW_S) + 100)
    for _ in range(3):
        gate.caller_of(bearer(good))
        assert "its signature is wrong" in refusal(gate, bearer(bad))
        assert "it has expired" in refusal(gate, bearer(late))
        assert "it is not valid yet" in refusal(gate, bearer(early))
    # Long ones, and those that cannot be right, are not even looked at.
    assert "more than" in refusal(gate, b"Bearer " + b"a.b." + b"c" * 1_000_000)
    refusal(gate, bearer(token(iss="nobody")))
    assert checked == [good, bad, late, early]


@pytest.mark.parametrize(
    ("made", "was_dear"),
    [
        (lambda: token(exp=int(NOW_S) - 100), True),
        (lambda: token(nbf=int(NOW_S) + 100), True),
        (lambda: token(aud="other"), True),
        (lambda: token(sub=None), True),
        (lambda: token() + "x", True),
        (lambda: token(iss="nobody"), False),
    ],
)
def test_what_took_a_signature_to_find_out_was_dear(gate: Gate, made: Any, was_dear: bool) -> None:
    field = bearer(made())
    with pytest.raises(Unauthenticated) as error:
        gate.caller_of(field)
    assert error.value.was_dear is was_dear
    with pytest.raises(Unauthenticated) as again:  # however many blanks there are, it is the same token
        gate.caller_of(field.replace(b" ", b"   "))
    assert not again.value.was_dear


def test_a_clock_that_is_set_right_lets_early_tokens_in(gate: Gate, clock: Clock, tmp_path: Path) -> None:
    ahead_s = 0.0
    early = bearer(token(nbf=int(NOW_S) + 500))
    corrected = Gate(
        partial(read_rules, tmp_path / "access.yaml"), lambda: clock.wall_s() + ahead_s, lambda: clock.now_ns
    )
    assert "not valid yet" in refusal(corrected, early)
    ahead_s = 500.0
    clock.pass_s(1)
    corrected.caller_of(early)


def test_a_flood_of_wrong_tokens_keeps_little_and_pushes_nobody_out(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_REFUSED", 50)
    good = bearer(token())
    caller = gate.caller_of(good)
    with caplog.at_level(logging.DEBUG):
        for number in range(500):
            refusal(gate, bearer(f"a.b.{number}"))
            refusal(gate, bearer(f"wrong-{number}"))
    assert not caplog.records
    assert len(gate.era.refused) <= 50
    assert len(gate.era.known) == 1
    assert gate.caller_of(good) is caller


def test_new_rules_hold_at_once_and_broken_ones_change_nothing(gate: Gate, tmp_path: Path) -> None:
    worker = WorkerGate(gate, Clock())
    visit = Visit(worker, b"Bearer sk-search", "inference", "m1")
    first = visit.caller
    assert visit.caller is first
    path = tmp_path / "access.yaml"
    path.write_text("keys: [")
    with pytest.raises(ConfigurationError):
        gate.reload()
    assert visit.caller is first
    path.write_text(RULES.replace('"m*"', '"n*"'))
    gate.reload()
    with pytest.raises(Forbidden):
        visit.caller  # noqa: B018  # asks
    path.write_text(RULES.replace("sk-search", "x").replace(digest("sk-search"), digest("sk-new")))
    gate.reload()
    with pytest.raises(Unauthenticated):
        visit.caller  # noqa: B018  # asks
    path.write_text(RULES)
    gate.reload()
    assert isinstance(visit.caller, Caller)


def test_keys_and_issuers_that_may_register_memory_have_shares_and_tokens_are_their_issuers(
    gate: Gate, tmp_path: Path
) -> None:
    assert gate.era.region_holders == set()
    path = tmp_path / "access.yaml"
    path.write_text(RULES.replace("inference", "inference, shared-memory"))
    gate.reload()
    key, alice, bob = (
        gate.caller_of(bearer(text)).owner for text in ("sk-search", token(), token(sub="bob\0\1", scope="inference"))
    )
    assert len({key, alice, bob}) == 3
    issuer = alice.partition("\1")[0]
    assert issuer == bob.partition("\1")[0]
    assert (bob.count("\0"), bob.count("\1")) == (0, 1)
    assert gate.era.region_holders == {key, issuer}
    path.write_text(RULES.replace("[health]", "[health, shared-memory]"))
    gate.reload()
    assert gate.era.region_holders == {gate.caller_of(None).owner}


def test_a_key_set_that_changes_replaces_the_keys(gate: Gate, tmp_path: Path) -> None:
    gate.caller_of(bearer(token()))
    write_keys(tmp_path, [public_jwk("other")])
    gate.reload()
    assert "no such key" in refusal(gate, bearer(token()))
    # Without an id, because there is but one key.
    gate.caller_of(bearer(token("other", head={"kid": None}, aud=["x", "toutates"])))
