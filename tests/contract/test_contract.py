"""What users have is what the files beside this one say; a change of it is a line in a diff."""

from __future__ import annotations

from difflib import unified_diff
from importlib.util import find_spec

import pytest

from tests.contract.subjects import FOLDER, LIVE, STATIC, path_of, text_of

#: What a server's models, and /docs, need.
_PACKAGES = ("flask_swagger_ui", "onnx", "tokenizers")
_REMEDY = (
    "Users would see this change. Mend the product if it is not meant. If it is, run `make contract`, commit the diff "
    "with the change, and tell it in CHANGELOG.md."
)


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What a real server, and commands, answer."""
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    from tests.contract.live import observe

    return observe(tmp_path_factory.mktemp("contract"))


def hold(subject: str, lines: list[str]) -> None:
    """Compare the lines of a subject with the committed ones."""
    path = path_of(subject)
    committed, made = path.read_text().splitlines(), text_of(subject, lines).splitlines()
    diff = list(unified_diff(committed, made, f"{subject}.txt", "the product", lineterm="", n=0))
    if diff:
        pytest.fail("\n".join((_REMEDY, *diff)), pytrace=False)


@pytest.mark.parametrize("subject", STATIC)
def test_what_the_product_says_of_itself_is_the_contract(subject: str) -> None:
    hold(subject, STATIC[subject]())


@pytest.mark.parametrize("subject", LIVE)
def test_what_a_server_answers_is_the_contract(subject: str, observed: dict[str, list[str]]) -> None:
    hold(subject, observed[subject])


def test_every_file_has_a_subject() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*STATIC, *LIVE}
