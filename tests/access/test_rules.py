"""The access file: what it comes to, and what is wrong with it, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.tokens import digest, private_key, public_jwk, write_keys
from tests.optional import skip_without
from toutates.access.quotas import Quotas
from toutates.access.rules import AccessRules, read_rules
from toutates.system.errors import ConfigurationError

skip_without("jwt")


def read(folder: Path, text: str) -> AccessRules:
    path = folder / "access.yaml"
    path.write_text(text)
    return read_rules(path, Quotas(lambda: 0))


def test_a_whole_file(tmp_path: Path) -> None:
    write_keys(tmp_path, [public_jwk("rsa"), public_jwk("ec"), public_jwk("ed"), {"kty": "oct", "use": "enc"}])
    rules = read(
        tmp_path,
        f"""
anonymous: [health]
keys:
  - name: search
    sha256: {digest("k")}
    groups: [inference, metadata]
    models: [ranker, "embed-*"]
    quota: {{requests_per_second: 2, rows_per_second: 0.5, burst_seconds: 3}}
tokens:
  - issuer: https://issuer.example
    audience: [a, b]
    jwks: jwks.json
    groups: [inference]
    groups_claim: scope
""",
    )
    [caller] = rules.keys.values()
    assert caller.name == "key search"
    assert [caller.may_use(name) for name in ("ranker", "embed-1", "rankers", "")] == [True, True, False, False]
    assert caller.bucket is not None
    issuer = rules.issuers["https://issuer.example"]
    assert (issuer.audiences, issuer.leeway_s, issuer.groups_claim) == (("a", "b"), 30.0, "scope")
    assert {key_id: key.algorithm for key_id, key in issuer.keys.by_id.items()} == {
        "rsa": "RS256",
        "ec": "ES256",
        "ed": "EdDSA",
    }
    assert rules.files == (tmp_path / "access.yaml", tmp_path / "jwks.json")


def test_every_mistake_is_told_at_once_with_its_key_and_a_remedy_and_no_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        read(
            tmp_path,
            f"""
anonymous: [healt]
keys:
  - name: a
    sha256: the-key-itself
    groups: [inference]
    quota: {{requests_per_second: 0}}
  - name: a
    sha256: {digest("k")}
    groups: []
    quota: {{}}
  - name: b
    sha256: {digest("k")}
    groups: [inference]
    models: []
    model: x
tokens:
  - issuer: i
    jwks: none.json
    groups: [inference]
""",
        )
    lines = str(error.value).splitlines()
    expected = {
        "anonymous: there is no such group; did you mean `health`? choose from health,": 1,
        "keys[0].sha256: is not the SHA-256 of a key": 1,
        "keys[0].quota.requests_per_second: would let nothing in": 1,
        "keys[1].name: is not the name of one key": 1,
        "keys[1].groups: names no group": 1,
        "keys[1].quota: bounds nothing": 1,
        "keys[2].sha256: belongs to another key too": 1,
        "keys[2].models: names no model": 1,
        "keys[2]: has an unknown key; did you mean `models`?": 1,
        "tokens[0].audience: required key is missing": 1,
        "none.json: there is no such file": 1,
    }
    for text, count in expected.items():
        assert sum(text in line for line in lines) == count, (text, lines)
    assert len(lines) == len(expected)
    assert all(line.startswith(f"{tmp_path / 'access.yaml'}: ") for line in lines)
    assert "the-key-itself" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("keys: []\n", "nobody is let in"),
        ("keys: x\n", "is not a list of mappings"),
        ("keys: [{name: a\n", "line 2"),
        ("tokens: [{issuer: i, audience: a, jwks: [k], groups: [inference]}]\n", r"jwks: is not a text; write a text"),
        ("tokens: [{issuer: i, audience: a, jwks: '', groups: [inference]}]\n", r"jwks: is not a text; write a text"),
        ("tokens: [{issuer: i, audience: a, groups: [inference]}]\n", r"tokens\[0\].jwks: required key is missing"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read(tmp_path, text)
    with pytest.raises(ConfigurationError, match=r"--access-file: there is no such file"):
        read_rules(tmp_path / "none.yaml", Quotas(lambda: 0))


def test_key_sets_with_keys_that_let_others_make_tokens_are_refused(tmp_path: Path) -> None:
    private = private_key("rsa").private_numbers().d
    keys = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "1"},
        public_jwk("rsa", kid="2", d=str(private)),
        public_jwk("small", kid="3"),
        public_jwk("rsa", kid="4", alg="none"),
        public_jwk("rsa", kid="5", alg="HS256"),
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "6"},
        public_jwk("rsa", kid=""),
        {"kty": "EC", "crv": "secp256k1", "kid": "8"},
        "text",
    ]
    write_keys(tmp_path, keys)
    with pytest.raises(ConfigurationError) as error:
        read(tmp_path, "tokens: [{issuer: i, audience: a, jwks: jwks.json, groups: [inference]}]\n")
    lines = str(error.value).splitlines()
    for at, text in enumerate(
        (
            "is a symmetric key",
            "has the private key",
            "is an RSA key of 1024 bits",
            "names the algorithm none",
            "names the algorithm HS256",
            "cannot be read",
            "needs a `kid` of its own",
            "is of a kind that is not taken",
            "is not a JSON Web Key",
        )
    ):
        assert f"keys[{at}]: {text}" in lines[at]
    assert str(private) not in str(error.value)
    for text in ("", "{", "[]", '{"keys": 1}', '{"keys": []}'):
        (tmp_path / "jwks.json").write_text(text)
        with pytest.raises(ConfigurationError, match=r"jwks\.json"):
            read(tmp_path, "tokens: [{issuer: i, audience: a, jwks: jwks.json, groups: [inference]}]\n")


SECRET = "sk-Zq8.secret"
PLACES = {
    "plain keys": f"{SECRET}\n{SECRET}2\n",
    "one plain key": SECRET,
    "a list of keys": f"- {SECRET}\n",
    "a key of the top": f"{SECRET}: admin\n",
    "a key given twice": f"{SECRET}: a\n{SECRET}: b\n",
    "a key that is no text": f"? [{SECRET}]\n: a\n",
    "an anchor": f"a: &{SECRET} 1\nb: &{SECRET} 2\n",
    "an alias": f"keys: *{SECRET}\n",
    "a tag": f"keys: !{SECRET}!x 1\n",
    "an odd escape": f'keys: "{SECRET}\\q"\n',
    "an odd character": f'keys: "{SECRET}\\0"\n',
    "no end": f"keys: [{SECRET}\n",
    "no mapping": f"keys: [{SECRET}]\n",
    "every value": f"anonymous: [{SECRET}]\nkeys: [{{name: '{SECRET}\\n', sha256: {SECRET}, groups: [{SECRET}], "
    f"models: {SECRET}, quota: {SECRET}, {SECRET}: 1}}, {{sha256: [{SECRET}], groups: {SECRET}, quota: "
    f"{{requests_per_second: {SECRET}, {SECRET}: 1}}}}]\n",
    "every value of an issuer": f"tokens: [{{issuer: [{SECRET}], audience: {{{SECRET}: 1}}, jwks: [{SECRET}], groups: "
    f"[{SECRET}], leeway_seconds: {SECRET}, groups_claim: [{SECRET}]}}]\n",
}


@pytest.mark.parametrize("place", PLACES)
def test_no_error_shows_what_stands_in_the_file(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        read(tmp_path, PLACES[place])
    known: BaseException | None = error.value
    while known is not None:
        assert SECRET not in str(known)
        known = known.__cause__
