"""``toutates completion``: the scripts in the shells that they are for, where these are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S
from toutates.command.completion import _ABOUT, SCRIPTS, script
from toutates.command.flags import FLAGS, LIMITS
from toutates.command.main import main
from toutates.command.parser import COMMANDS
from toutates.command.parsers import PARSERS


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed: tests/peers.sh")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where shells run: it has the scripts, and something to complete."""
    for shell in SCRIPTS:
        (tmp_path / f"script.{shell}").write_text(script(shell))
    (tmp_path / "net one.onnx").touch()
    (tmp_path / "nets").mkdir()
    return tmp_path


def bash(folder: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    line = 'source script.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _toutates; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", line, "bash", "toutates", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return set(done.stdout.splitlines()) - {""}


def fish(folder: Path, line: str) -> set[str]:
    """What fish offers at the end of a line."""
    done = subprocess.run(
        ["fish", "--no-config", "-c", "source script.fish; complete -C $argv[1]", line],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HOME": str(folder)},
    )
    assert done.stderr == ""
    return {found.partition("\t")[0].replace("\\ ", " ") for found in done.stdout.splitlines()}


def zsh(folder: Path, lines: Mapping[str, str]) -> None:
    """Have zsh complete each line by the key Tab, and wait until it shows what the line is expected to have become."""
    setup = "PS1='=''> '; unsetopt beep; unset zle_bracketed_paste; autoload -U compinit; compinit -u -D\n"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        start_new_session=True,
        env=os.environ | {"TERM": "dumb", "COLUMNS": "400", "HOME": str(folder)},
    )
    os.close(theirs)
    try:

        def write(text: str, until: str) -> None:
            os.write(ours, text.encode())
            shown = ""
            while until not in shown:
                assert select.select([ours], [], [], PATIENCE_S)[0], f"{text!r} has become {shown!r}"
                shown += os.read(ours, 4096).decode()

        write(setup, "=> ")
        write("source script.zsh\n", "=> ")
        for line, end in lines.items():
            write(f"\x15{line}\t", end)  # the first key empties the line
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@needs("bash")
def test_bash_completes_commands_flags_and_values(folder: Path) -> None:
    assert bash(folder, "") == {"serve", *COMMANDS}
    assert bash(folder, "pr") == {"probe", "proto"}
    assert bash(folder, "serve", "--grpc-add") == {"--grpc-addr"}
    assert bash(folder, "--grpc-add") == {"--grpc-addr"}
    assert bash(folder, "serve", "--nam") == {"--name"}
    assert bash(folder, "--nam") == set(), "it is of serve"
    assert bash(folder, "serve", "--log-format", "") == {"text", "json", "ISO8601"}
    assert bash(folder, "--log-format", "=", "j") == {"json"}
    assert bash(folder, "--log-format", "=") == {"text", "json", "ISO8601"}
    assert bash(folder, "probe", "--tls-server-na") == {"--tls-server-name"}
    assert bash(folder, "serve", "--limit", "conn") == {f"{name}=" for name in LIMITS if name.startswith("conn")}
    assert bash(folder, "completion", "") == {"bash", "zsh", "fish"}


@needs("bash")
def test_bash_completes_files_and_folders(folder: Path) -> None:
    assert bash(folder, "serve", "ne") == {"net one.onnx", "nets"}
    assert bash(folder, "serve", "--model-repository", "ne") == {"nets"}
    assert bash(folder, "check", "ne") == {"nets"}
    assert bash(folder, "config", "s") == {"show"}
    assert bash(folder, "probe", "--timeout", "ne") == set()


@needs("fish")
def test_fish_completes_commands_flags_values_files_and_folders(folder: Path) -> None:
    assert fish(folder, "toutates ") == {"serve", *COMMANDS}
    assert fish(folder, "toutates serve --grpc-add") == {"--grpc-addr"}
    assert fish(folder, "toutates --grpc-add") == {"--grpc-addr"}
    assert fish(folder, "toutates --nam") == set()
    assert fish(folder, "toutates serve --log-format ") == {"text", "json", "ISO8601"}
    assert fish(folder, "toutates serve --log-format=j") == {"--log-format=json"}
    assert fish(folder, "toutates probe --tls-server-na") == {"--tls-server-name"}
    assert fish(folder, "toutates serve ne") == {"net one.onnx", "nets/"}
    assert fish(folder, "toutates check ne") == {"nets/"}
    assert fish(folder, "toutates completion ") == {"bash", "zsh", "fish"}
    assert "show" in fish(folder, "toutates config s")


@needs("zsh")
def test_zsh_completes_commands_flags_values_files_and_folders(folder: Path) -> None:
    zsh(
        folder,
        {
            "toutates prob": "toutates probe ",
            "toutates serve --grpc-add": "serve --grpc-addr=",
            "toutates --metrics-add": "toutates --metrics-addr=",
            "toutates serve --log-format j": "--log-format json ",
            "toutates serve --log-format=j": "--log-format=json ",
            "toutates probe --tls-server-na": "--tls-server-name=",
            "toutates serve net\\ ": "net\\ one.onnx ",
            "toutates check ne": "check nets/",
            "toutates completion fi": "completion fish ",
            "toutates config sho": "config show ",
        },
    )


@needs("zsh")
def test_zsh_takes_the_script_as_a_file_of_its_own(folder: Path) -> None:
    (folder / "script.zsh").rename(folder / "_toutates")
    code = "autoload -Uz _toutates; functions -u >/dev/null; autoload +X _toutates && whence -w _toutates"
    done = subprocess.run(
        ["zsh", "-f", "-c", f"fpath=($PWD $fpath); {code}"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout == "_toutates: function\n"


def test_every_flag_that_help_shows_is_completed() -> None:
    for shell in SCRIPTS:
        text = script(shell)
        dashes = "-l " if shell == "fish" else "--"
        assert [name for name in FLAGS if f"{dashes}{name}" not in text] == []


def test_every_command_is_described() -> None:
    assert set(_ABOUT) == {"serve", *COMMANDS}
    assert set(PARSERS) == set(COMMANDS)


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == script("bash")
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
