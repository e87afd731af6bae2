"""Builds what is released: the sdist, out of that the wheel, and a bill of materials (CycloneDX) beside them.

python release/make_dist.py [FOLDER]     the folder is dist by default; former releases in it are removed

The same commit gives the same bytes: files have the time of SOURCE_DATE_EPOCH, or of the last commit. The bill of
materials lists what pip installs today for the wheel with the extras of EXTRAS, in an environment made for that.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[1]
#: Of the bill of materials: those that most installations have, and that the image has.
EXTRAS: Final = ("cpu", "docs", "otel", "text")
_TIME: Final = "SOURCE_DATE_EPOCH"
#: 1980, the earliest time that a wheel's files can have.
_EARLIEST: Final = 315_532_800


def build_time(environment: Mapping[str, str], root: Path = ROOT) -> int:
    """The time of all files, in seconds since 1970: what the environment says, else that of the last commit."""
    if environment.get(_TIME):
        return int(environment[_TIME])
    said = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    return int(said) if said else _EARLIEST


def build(folder: Path) -> Path:
    """Build the sdist and the wheel; returns the wheel. The wheel is made of the sdist, so nothing is missing there."""
    for old in (*folder.glob("toutates-*.whl"), *folder.glob("toutates-*.tar.gz"), *folder.glob("toutates-*.cdx.json")):
        old.unlink()
    # Without isolation, because the extra "dist" has what the build needs, of the versions that were tested.
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)])
    [wheel] = folder.glob("toutates-*.whl")
    return wheel


def bill_of_materials(wheel: Path) -> Path:
    """Write the bill of materials of a wheel beside it; returns its path."""
    version = wheel.name.split("-")[1]
    path = wheel.with_name(f"toutates-{version}.cdx.json")
    with tempfile.TemporaryDirectory() as folder:
        _run([sys.executable, "-m", "venv", folder])
        python = str(Path(folder, "bin", "python"))
        quiet = ("--quiet", "--disable-pip-version-check")
        _run([python, "-m", "pip", "install", *quiet, f"{wheel}[{','.join(EXTRAS)}]"])
        _run([python, "-m", "pip", "uninstall", *quiet, "--yes", "pip", "setuptools"])
        project = str(ROOT / "pyproject.toml")
        form = ("--output-reproducible", "--mc-type", "application", "--pyproject", project, "--output-file", str(path))
        _run([sys.executable, "-m", "cyclonedx_py", "environment", *form, python])
    described: dict[str, Any] = json.loads(path.read_text())
    root = described["metadata"]["component"]
    root["version"] = version  # which pyproject.toml leaves to git
    # Those of all extras of pyproject.toml are listed that something else happens to need.
    own = next(one for one in described["dependencies"] if one["ref"] == root["bom-ref"])
    wanted = requirements(wheel, EXTRAS)
    own["dependsOn"] = [ref for ref in own["dependsOn"] if canonicalize_name(ref.partition("==")[0]) in wanted]
    path.write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
    return path


def requirements(wheel: Path, extras: Sequence[str]) -> set[str]:
    """The names of the packages that a wheel requires with these extras."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    found = map(Requirement, metadata.get_all("Requires-Dist", []))
    return {
        canonicalize_name(one.name)
        for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    }


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    """Build everything, and print what was built."""
    parser = argparse.ArgumentParser(description="Build the sdist, the wheel and their bill of materials.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    folder: Path = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[_TIME] = str(build_time(os.environ))
    bill_of_materials(build(folder))
    for path in sorted(folder.glob("toutates-*")):
        print(path)


if __name__ == "__main__":
    main()
