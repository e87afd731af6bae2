"""``EXECUTION_ENV_PATH``: folders and archives, and what is wrong with them."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest

from toutates.backends.python.environments import Environments
from toutates.backends.python.process import Interpreter
from toutates.system.errors import ModelLoadError

PROGRAM = f'#!/bin/sh\nexec {sys.executable} "$@"\n'


def make_folder(path: Path) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "activate").write_text("")
    (path / "bin" / "python").write_text(PROGRAM)
    (path / "bin" / "python").chmod(0o755)
    return path


def make_archive(path: Path, names: dict[str, str], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in names.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return path


def test_the_servers_python_is_the_default(tmp_path: Path) -> None:
    assert Environments().interpreter("", tmp_path).command == (sys.executable,)


def test_a_folder_may_be_beside_the_model(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model" / "env")
    interpreter = Environments().interpreter("$$TRITON_MODEL_DIRECTORY/env", tmp_path / "model")
    assert interpreter.command == (str(folder / "bin" / "python"),)
    assert interpreter.environment["VIRTUAL_ENV"] == str(folder)
    assert interpreter.environment["PATH"].startswith(f"{folder}/bin:")


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    archive = make_archive(
        tmp_path / "env.tar.gz", {"bin/activate": "", "bin/python": PROGRAM, "conda-meta/history": ""}
    )
    environments = Environments()
    first = environments.interpreter(str(archive), tmp_path)
    (link := tmp_path / "link.tar.gz").symlink_to(archive)
    assert environments.interpreter(str(link), tmp_path) == first
    assert first.environment["CONDA_PREFIX"]
    assert Path(first.command[0]).exists()


@pytest.mark.parametrize("name", ["../evil", "/tmp/toutates-evil", "bin/../../evil"])
def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    archive = make_archive(tmp_path / "env.tar.gz", {"bin/activate": "", "bin/python": PROGRAM, name: "evil"})
    if name.startswith("/"):
        # Taken as a name within the folder.
        Environments().interpreter(str(archive), tmp_path)
        assert not Path(name).exists()
        return
    with pytest.raises(ModelLoadError, match=r"EXECUTION_ENV_PATH .* cannot be used"):
        Environments().interpreter(str(archive), tmp_path)
    assert not list(tmp_path.rglob("evil"))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "env.tar.gz", {"bin/activate": "", "bin/python": PROGRAM}, {"lib": "../.."})
    with pytest.raises(ModelLoadError, match="cannot be used"):
        Environments().interpreter(str(archive), tmp_path)


def test_what_is_no_environment_is_refused(tmp_path: Path) -> None:
    environments = Environments()
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ModelLoadError, match=r"Path .*/empty/bin/activate does not exist\. The Python environment"):
        environments.interpreter(str(tmp_path / "empty"), tmp_path)
    with pytest.raises(ModelLoadError, match="cannot be used"):
        environments.interpreter(str(tmp_path / "text"), tmp_path)
    with pytest.raises(ModelLoadError, match="No such file"):
        environments.interpreter(str(tmp_path / "absent"), tmp_path)


def test_a_process_gets_the_variables_that_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LANG", "C")
    assert Interpreter().variables()["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert Interpreter(environment={"A": "b"}, kept=frozenset(("LANG", "ABSENT"))).variables() == {
        "LANG": "C",
        "A": "b",
    }
    assert Interpreter(kept=frozenset(("",))).variables() == {}
