"""`make mutants` replaces what it says by its opposite, everything it should, and nothing else."""

from __future__ import annotations

import ast

import pytest

from fuzz.mutants import ROOT, Coverage, all_mutants, equivalent_mutants, mutants_of


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("a < b", ["a >= b"]),
        ("a<=b", ["a>b"]),
        ("x = a == b != c", ["x = a != b != c", "x = a == b == c"]),
        ("a is b", ["a is not b"]),
        ("a is  not b", ["a is b"]),
        ("isa in notin", ["isa not in notin"]),
        ("a and b and c or d", ["a or b and c or d", "a and b or c or d", "a and b and c and d"]),
        ("(a) + (\n # - and <\n b)", ["(a) - (\n # - and <\n b)"]),
        ("a -= b + -c", ["a += b + -c", "a -= b - -c"]),
        ('"ä < é" < "é" "+"', ['"ä < é" >= "é" "+"']),
        ("def f(a: B | C = not d) -> E: return a * b", []),
        ("if TYPE_CHECKING:\n if a < b: pass", []),
    ],
)
def test_each_operator_is_replaced_by_itself(source: str, changed: list[str]) -> None:
    data = source.encode()
    mutants = mutants_of("m.py", data)
    assert [(data[: one.start] + one.new.encode() + data[one.end :]).decode() for one in mutants] == changed


def test_a_mutant_is_told_by_its_place_and_its_line() -> None:
    source = b"class A:\n  def f(self):\n    return 1 + 2 + 3\n"
    first, second = mutants_of("m.py", source)
    assert str(first) == "m.py:3 A.f: + to -: return 1 + 2 + 3"
    assert str(second) == "m.py:3 A.f: + to -, number 2: return 1 + 2 + 3"


def test_every_mutant_of_the_product_is_another_program() -> None:
    mutants = all_mutants()
    assert len(mutants) > 1_000
    assert len({one.key for one in mutants}) == len(mutants)
    for one in mutants[::100]:
        source = (ROOT / one.file).read_bytes()
        mutant = source[: one.start] + one.new.encode() + source[one.end :]
        assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source))


def test_equivalent_mutants_are_those_of_this_tree_and_have_their_reasons() -> None:
    known = {one.key for one in all_mutants()}
    for key, reason in equivalent_mutants().items():
        assert key in known, f"there is no such mutant any more: {key}"
        assert len(reason) > 20


def test_a_mutant_is_tried_by_the_tests_that_execute_it_and_those_of_its_module_first() -> None:
    (mutant,) = mutants_of("toutates/p/m.py", b"x = [\n  1\n  + 2]\n")
    took_s = {"t/test_a.py::slow": 2.0, "t/test_a.py::quick": 1.0, "t/test_b.py::b": 1.0, "t/test_m.py::m": 9.0}

    def tests(*who: str) -> list[str]:
        return Coverage(took_s, [], {("toutates/p/m.py", 3): set(who), ("toutates/p/m.py", 4): {""}}).tests_of(mutant)

    assert tests("t/test_a.py::slow", "t/test_m.py::m") == ["t/test_m.py::m", "t/test_a.py::slow"]
    assert tests("t/test_a.py") == ["t/test_a.py::quick", "t/test_a.py::slow"]  # a fixture of that file
    everything = ["t/test_m.py::m", "t/test_b.py::b", "t/test_a.py::quick", "t/test_a.py::slow"]
    assert tests("") == everything  # whoever imports it
    assert tests() == everything  # perhaps a test in a process of its own


def test_what_survives_is_tried_by_the_quickest_files_whose_servers_execute_it_and_that_passed() -> None:
    (mutant,) = mutants_of("toutates/p/m.py", b"x = 1 + 2\n")
    took_s = {"t/test_a.py::a": 50.0, "t/test_a.py::b": 30.0, "t/test_b.py::b": 60.0, "t/test_c.py::c": 1.0}
    lines = {
        ("toutates/p/m.py", 1): {"t/test_a.py", "t/test_b.py", "t/test_c.py"},
        ("toutates/p/m.py", 2): {"t/test_d.py"},
    }

    def files(most_s: float, *failed: str) -> list[str]:
        return Coverage(took_s, list(failed), lines).files_of(mutant, most_s)

    assert files(300) == ["t/test_c.py", "t/test_b.py", "t/test_a.py"]
    assert files(100) == ["t/test_c.py", "t/test_b.py"]
    assert files(0) == ["t/test_c.py"]  # one at the least
    assert files(0, "t/test_c.py::c") == ["t/test_b.py"]
    assert Coverage(took_s, [], {}).files_of(mutant, 300) == []
