"""The rules of aliases and traffic as they are read; ``tests/e2e/test_traffic.py`` has what is refused."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

from toutates.models.traffic.reading import merged, read_document, read_rules_file
from toutates.models.traffic.rules import NO_TRAFFIC, Target, cuts_of, spread
from toutates.system.errors import ConfigurationError


def test_rules_are_read_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "traffic.yaml"
    assert read_rules_file(file) == NO_TRAFFIC
    file.write_text(
        "aliases: {a: b, b: {model: m}, c: {model: m, version: 2}}\n"
        "traffic:\n"
        "  b: {shadow: {model: c, share: 0.5, atol: 1}}\n"
        "  k: {split: [{version: 1, weight: 3}, {version: 2, weight: 9}], sticky: parameter:user}\n"
    )
    rules = read_rules_file(file)
    assert rules.aliases == {"a": Target("m"), "b": Target("m"), "c": Target("m", 2)}
    route = rules.routes["k"]
    assert (route.heaviest, route.parameter, route.shadow) == (Target("k", 2), "user", None)
    # The alias of an alias with traffic has that traffic, and an alias of a version has none.
    assert rules.routes["a"] is rules.routes["b"]
    assert "c" not in rules.routes
    shadow = rules.routes["b"].shadow
    assert shadow is not None
    assert (shadow.target, shadow.share, shadow.rtol, shadow.atol) == (Target("m", 2), 0.5, 1e-3, 1)
    assert rules.leads_to("k") == ("k",)
    assert rules.leads_to("nothing") == ()


def test_all_mistakes_are_told_with_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "traffic.yaml"
    file.write_text("aliases: {a: 3}\ntraffic: {m: {split: [{weight: 0}], stick: id}}\n")
    with pytest.raises(ConfigurationError) as error:
        read_rules_file(file)
    for text in (str(file), "aliases.a", "traffic.m.split[0].weight", "did you mean `sticky`?"):
        assert text in str(error.value)


def test_change_replaces_the_names_that_it_gives() -> None:
    before = {"aliases": {"a": "m", "b": "m"}}
    assert merged(before, {"aliases": {"a": None, "c": "n"}, "traffic": {"t": {}}}) == {
        "aliases": {"b": "m", "c": "n"},
        "traffic": {"t": {}},
    }
    assert before == {"aliases": {"a": "m", "b": "m"}}


def test_long_chain_of_aliases_is_followed() -> None:
    chain = {f"a{number}": f"a{number + 1}" for number in range(500)}
    rules = read_document({"aliases": chain}, Path("file"))
    assert rules.aliases["a0"] == Target("a500")


def test_identities_are_spread_by_weight_and_names_apart() -> None:
    """10,000 draws: five standard deviations are 200 at a share of 0.8, and 250 at 0.5."""
    cuts = cuts_of((8, 2))
    names = [crc32(name) for name in (b"one", b"two")]
    ids = [str(number).encode() for number in range(10_000)]
    both = Counter(tuple(bisect_right(cuts, spread(one, salt)) for salt in names) for one in ids)
    for position in (0, 1):
        first = sum(count for arms, count in both.items() if arms[position] == 0)
        assert abs(first - 8_000) < 200
    assert abs(both[1, 1] - 400) < 100  # 0.2 x 0.2: who is in the one is not more likely in the other


def test_cuts_have_the_weights_shares() -> None:
    assert cuts_of((1,)) == []
    assert cuts_of((1, 1, 2)) == [2**30, 2**31]


def test_very_many_aliases_that_follow_each_other_are_read() -> None:
    """Each by itself would be two hundred million steps."""
    names = 20_000
    chain = {f"a{number}": f"a{number + 1}" for number in range(names)}
    split = {"split": [{"model": "m", "version": 1, "weight": 1}]}
    rules = read_document({"aliases": chain, "traffic": {f"a{names - 9}": split, "a5": split}}, Path("file"))
    assert set(rules.aliases.values()) == {Target(f"a{names}")}
    assert len(rules.routes) == names - 9 + 1
    assert rules.routes["a4"] is rules.routes["a0"] is rules.routes["a5"]
    assert rules.routes["a6"] is rules.routes[f"a{names - 10}"] is rules.routes[f"a{names - 9}"]
    assert f"a{names - 8}" not in rules.routes
