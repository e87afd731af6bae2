"""What Linux's control groups limit the process to, versions 1 and 2 (``cgroups(7)``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["PROC", "ROOT", "limit_texts"]

#: Where the kernel shows processes, and where control groups are mounted.
PROC: Final = Path("/proc")
ROOT: Final = Path("/sys/fs/cgroup")


def limit_texts(controller: str, first: tuple[str, ...], second: str, proc: Path, root: Path) -> Iterator[str]:
    """The texts of a limit: of the process's control groups and of every group above them.

    A group without the files is passed over. The files of a version 1 group give one text, separated by blanks.

    Args:
        controller: name of the controller, such as "memory".
        first: names of the files in version 1.
        second: name of the file in version 2.
        proc, root: where the kernel shows processes and control groups.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base, names = (root / controller, first) if controllers else (root, (second,))
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            try:
                texts = [(base / folder / name).read_text().strip() for name in names]
            except OSError:
                continue
            yield " ".join(texts)
