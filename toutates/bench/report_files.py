"""Files that reports are written to: whether they can be is known before anything is measured."""

from __future__ import annotations

from pathlib import Path

from toutates.system.errors import ConfigurationError

__all__ = ["check_report_file", "write_report_file"]


def check_report_file(flag: str, path: str) -> None:
    """Whether a file can be written, which is left as it is.

    Args:
        flag: that names it.
        path: of it.

    Raises:
        ConfigurationError: it cannot be written.
    """
    there = Path(path).exists()
    write_report_file(flag, path, "", "a")
    if not there:
        Path(path).resolve().unlink()


def write_report_file(flag: str, path: str, text: str, mode: str = "w") -> None:
    """Write a file.

    Args:
        flag: that names it.
        path: of it.
        text: of it.
        mode: "w", or "a" for what is put behind what it has.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", key=flag, value=path) from None
