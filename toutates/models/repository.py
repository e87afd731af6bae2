"""A model repository in a local directory: which models and versions there are to serve.

    <root>/<model>/<version>/model.onnx         the graph, with external weights beside it if it has any
    <root>/<model>/<version>/model.onnx/        or a directory that holds model.onnx and its weights
    <root>/<model>/<version>/config.yaml        optional, see ``toutates.models.config.settings``
    <root>/<model>/config.pbtxt                 optional, see ``toutates.models.config.triton_configuration``

or the folder of a text model, as version 1 of it:

    <root>/<model>/modules.json                 or tokenizer.json and config.json, see ``toutates.backends.text``

or of one model alone, as version 1, with its configuration beside it:

    <root>/model.onnx

A file of a graph may be a model too, whatever lies beside it (``file_model``).

Only what makes the whole repository unusable is raised. What is wrong with one model or version is noted on it, so that
the others are served and the repository index can show the reason. Links to directories are followed, because
deployments swap repositories by them; hidden entries are passed over, because Kubernetes and editors leave them.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unicodedata import category

from toutates.models.config.misplaced import (
    graphs,
    loose_configurations,
    near_directory,
    right_path_for_file,
    wrong_root,
)
from toutates.models.config.other_kinds import kind_among_files
from toutates.models.config.pbtxt import PBTXT_NAME
from toutates.models.config.settings import CONFIG_NAME, MODEL_FILENAME
from toutates.models.config.triton_configuration import TritonConfiguration, read_triton_configuration
from toutates.models.text_folder import is_text_folder
from toutates.system.errors import ConfigurationError, MissingRepository
from toutates.system.text import described, printable

__all__ = [
    "MODEL_FILENAME",
    "RESERVED",
    "ModelFolder",
    "VersionFolder",
    "belongs_to_graph",
    "file_model",
    "found_instead",
    "has_control_characters",
    "is_plain_name",
    "is_version",
    "lone_model",
    "may_be_meant_as_version",
    "not_a_model_name",
    "say_passed_over",
    "scan",
    "scan_model",
    "unexpected",
    "version_folder",
]

logger = logging.getLogger(__name__)

#: Triton's own sub-directories of a model
RESERVED: Final = frozenset({"configs", "initial_state", "warmup"})

#: What people write before the number of a version.
_BEFORE_NUMBER: Final = re.compile(r"(version|release|ver|v)?[-+._ ]*", re.IGNORECASE)

#: Directories that file systems, network storage and Python put beside models, whatever is in them.
_NEVER_MODELS: Final = frozenset(
    {"lost+found", "__pycache__", "@eaDir", "#recycle", "#snapshot", "@Recycle", "System Volume Information"}
)

_FLAG: Final = "--model-repository"
_VERSION: Final = re.compile(r"[1-9][0-9]*")
_GREATEST_VERSION: Final = 2**63 - 1  # versions are int64 in the protocol
#: Errors of a link to nothing or to itself, and of an entry that has just been removed.
_NOTHING_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class VersionFolder:
    """One version of a model.

    Attributes:
        number: from 1 to 2^63 - 1, the name of the directory.
        path: the version's directory.
        model_path: the graph's file, whether or not it can be read.
        problem: why the version cannot be loaded; empty if nothing stands against it.
        triton: what the model's config.pbtxt says; None without one.
        fingerprint: changes with any file of the version; empty where it was not computed.
        size: bytes of all files in its directory; None where that was not found out.
        is_lone: whether its directory is the model's as well.
        is_file: whether it is the graph's file alone, and what else lies in the directory is not the model's.
    """

    number: int
    path: Path
    model_path: Path
    problem: str = ""
    triton: TritonConfiguration | None = None
    fingerprint: str = ""
    size: int | None = None
    is_lone: bool = False
    is_file: bool = False

    @property
    def model_dir(self) -> Path:
        """The model's directory, which has the files of all its versions."""
        return self.path if self.is_lone else self.path.parent


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model of the repository.

    Attributes:
        name: of the directory, and of the model for its clients.
        path: the model's directory.
        versions: ascending by number.
        warnings: what was passed over in the directory and may have been meant, one sentence each.
        problem: why no version of it can be loaded; empty if there are any to try.
        fingerprint: changes with any file of the model; empty where it was not computed.
        source: where the operator finds it, a path or an s3:// URL; empty where ``path`` says it.
        has_no_version: whether that there is none is the problem.
        is_lone: whether it is a graph in the repository's own directory, which is its only version then.
        passed_over: whether it does not look like a model at all, for the reason in ``problem``. It is served only if
            somebody asks for it by name, and then fails with that reason.
    """

    name: str
    path: Path
    versions: tuple[VersionFolder, ...] = ()
    warnings: tuple[str, ...] = ()
    problem: str = ""
    fingerprint: str = ""
    source: str = ""
    passed_over: bool = False
    has_no_version: bool = False
    is_lone: bool = False


def scan(
    root: Path, only: Collection[str] | None = None, *, asked_by: str = _FLAG, lone_name: str = ""
) -> list[ModelFolder]:
    """List the models of a repository, sorted by name, and the directories that are passed over.

    An empty repository gives an empty list. Kubernetes' own entries, whose names begin with two dots, are left out.

    Args:
        root: the directory.
        only: names of the models wanted; None for all. Those that are not there are left out.
        asked_by: the flag or argument that names the directory, for errors.
        lone_name: of the model whose graph lies alone in the directory; "" for the directory's own name, or "model" if
            no model can have that.

    Raises:
        ConfigurationError: the directory does not exist, cannot be read, or is something else than a repository.
    """
    if only is not None and (named := _named(root, only)) is not None:
        return named
    folders = [scan_model(root / name) for name in _model_names(root, asked_by, only)]
    if _has_lone_model(root, asked_by, is_named=bool(lone_name)):
        lone = lone_name or _own_name(root)
        if _is_text_model(root):  # whose own folders are no models, and nobody takes them for such
            folders = []
        if only is None or lone in only:
            folders.append(lone_model(root, lone))
        return sorted(folders, key=lambda folder: folder.name)
    if not any(folder.versions for folder in folders):
        problem, _, remedy = wrong_root(root).partition("; ")
        if problem:
            raise _unusable(asked_by, root, problem, remedy)
    return folders


def _named(root: Path, only: Collection[str]) -> list[ModelFolder] | None:
    """The models of these names, where all of them are there and none is passed over; None otherwise.

    Nothing else in the repository is looked at, which may have any number of models. One with such a model has no lone
    model beside it.
    """
    folders: list[ModelFolder] = []
    for name in sorted(only):
        if not is_plain_name(name):
            return None
        folder = scan_model(root / name)
        if folder.passed_over or folder.problem:
            return None
        folders.append(folder)
    return folders or None


def is_plain_name(name: str) -> bool:
    """Whether a name is that of a directory in the repository itself, and may be a model's."""
    return bool(name) and "/" not in name and "\0" not in name and not not_a_model_name(name)


def model_names(root: Path, asked_by: str = _FLAG) -> list[str]:
    """Names of the directories of a repository that may be models, without a look at any; [] if it has a lone model.

    Args:
        root: the directory.
        asked_by: the flag or argument that names it, for errors.

    Raises:
        ConfigurationError: as ``scan``.
    """
    try:
        with os.scandir(root) as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        _model_names(root, asked_by)  # which says why
        raise
    others = [name for name, is_directory in found if not is_directory]
    names = [name for name, is_directory in found if is_directory]
    if MODEL_FILENAME in others or is_text_folder([*others, *names]):
        return []
    return sorted(name for name in names if not not_a_model_name(name) and _shown(name) == name)


def _has_lone_model(root: Path, asked_by: str, *, is_named: bool) -> bool:
    """Whether a graph, or a text model's folder, is a repository's own directory, and no directory in it is a model's.

    Args:
        root: the repository's directory.
        asked_by: as of ``scan``.
        is_named: whether the operator has named the model, so that this is no mistake.
    """
    is_text_model = _is_text_model(root)
    if not is_text_model and (graphs(root) != [MODEL_FILENAME] or os.path.isdir(root / MODEL_FILENAME)):
        return False
    if not all(scan_model(root / name).passed_over for name in _model_names(root, asked_by)):
        return False
    return is_text_model or is_named or not wrong_root(root)


def _own_name(root: Path) -> str:
    name = Path(os.path.abspath(root)).name
    return "model" if not name or not_a_model_name(name) or _shown(name) != name else name


def _model_names(root: Path, asked_by: str, only: Collection[str] | None = None) -> list[str]:
    try:
        names = [name for name in os.listdir(root) if not name.startswith("..") and (only is None or name in only)]
        return sorted(name for name in names if _is_directory(root, name))
    except FileNotFoundError as exc:
        near = near_directory(root)
        remedy = f"did you mean '{near}'?" if near else "create it, or correct the path"
        raise MissingRepository("there is no such directory", key=asked_by, value=str(root), remedy=remedy) from exc
    except NotADirectoryError as exc:
        raise _unusable(asked_by, root, "is not a directory", right_path_for_file(root)) from exc
    except OSError as exc:
        remedy = "make it readable for the server's user"
        raise _unusable(asked_by, root, f"cannot be read: {exc.strerror}", remedy) from exc


def _unusable(asked_by: str, root: Path, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, key=asked_by, value=str(root), remedy=remedy)


def scan_model(path: Path, override: TritonConfiguration | None = None) -> ModelFolder:
    """Look at one model's directory; what is wrong with it is noted.

    Args:
        path: the directory.
        override: holds in place of its config.pbtxt.
    """
    name = path.name
    reason = not_a_model_name(name)
    if reason:
        return ModelFolder(name, path, problem=reason, passed_over=True)
    try:
        return _scanned(path, override)
    except Exception as error:
        return ModelFolder(_shown(name), path, problem=unexpected(name, path, error))


def unexpected(model: str, path: Path, error: Exception) -> str:
    """Why a model cannot be served whose files have shown a bug of ours, so that it takes no other model with it.

    Args:
        model: its name.
        path: its directory.
        error: what was raised. Its traceback is for --log-level debug: a poll may raise it again and again.
    """
    logger.debug("the files of model '%s' cannot be read", printable(model), exc_info=error)
    return f"'{path}' cannot be read: {described(error)}"


def _scanned(path: Path, override: TritonConfiguration | None) -> ModelFolder:
    name = path.name
    try:
        names = os.listdir(path)
    except OSError as exc:
        return ModelFolder(_shown(name), path, problem=f"cannot read '{path}': {exc.strerror}")
    entries = sorted(entry for entry in names if not entry.startswith(".") and _is_directory(path, entry))
    numbers = sorted(int(entry) for entry in entries if is_version(entry))
    is_meant = bool(numbers or override) or os.path.lexists(path / PBTXT_NAME)
    if _shown(name) != name:
        # Clients name models in protobuf strings, which are UTF-8, and names stand in logs, pages and metrics, where
        # control characters do harm. Shown escaped, so that it can be found and renamed.
        what = "has control characters" if has_control_characters(name) else "is not UTF-8"
        problem = f"the name of the model's directory {what}"
        return ModelFolder(_shown(name), path, problem=problem, passed_over=not is_meant)
    warnings = [
        f"'{path / entry}' is passed over: a version's directory is named by a positive integer without leading zeros"
        for entry in entries
        if not is_version(entry) and entry not in RESERVED and (not numbers or may_be_meant_as_version(entry))
    ]
    if not numbers and _is_text_model(path):
        return lone_model(path, name, override)
    warnings += loose_configurations(path, names, numbers)
    problem = "" if numbers else f"no version directory in '{path}', such as '{path / '1'}'"
    try:
        triton = override or (read_triton_configuration(path) if PBTXT_NAME in names else None)
    except ConfigurationError as error:
        return ModelFolder(path.name, path, warnings=tuple(warnings), problem=str(error))
    if triton is not None:
        numbers, missing = triton.chosen(numbers)
        warnings += [f"'{path / str(number)}' is not there, and version_policy names it" for number in missing]
        if triton.warning:
            warnings.append(triton.warning)
        if missing and not numbers:
            problem = f"'{triton.source}': version_policy selects no version that is there"
    filename = triton.settings.model_filename if triton is not None else ""
    versions = tuple(version_folder(path / str(number), filename, triton) for number in numbers)
    return ModelFolder(
        name,
        path,
        versions,
        tuple(warnings),
        problem,
        passed_over=not is_meant,
        has_no_version=bool(problem),
    )


def lone_model(root: Path, name: str, override: TritonConfiguration | None = None) -> ModelFolder:
    """Look at a model whose graph lies in the repository's own directory; what is wrong with it is noted.

    Args:
        root: the directory.
        name: of the model.
        override: holds in place of a config.pbtxt.
    """
    try:
        triton = override or read_triton_configuration(root, name)
    except ConfigurationError as error:
        return ModelFolder(name, root, problem=str(error), is_lone=True)
    except Exception as error:
        return ModelFolder(name, root, problem=unexpected(name, root, error), is_lone=True)
    filename = triton.settings.model_filename if triton is not None else ""
    warnings = (triton.warning,) if triton is not None and triton.warning else ()
    return ModelFolder(name, root, (version_folder(root, filename, triton, is_lone=True),), warnings, is_lone=True)


def file_model(path: Path, name: str, override: TritonConfiguration | None = None) -> ModelFolder:
    """Look at a model that is the file of a graph, of any name; what is wrong with it is noted.

    The directory may be anybody's: only of a ``model.onnx`` the configuration that lies beside it is the model's.

    Args:
        path: the file.
        name: of the model.
        override: holds in place of a config.pbtxt.
    """
    root = path.parent
    is_configured = any(os.path.isfile(root / own) for own in (CONFIG_NAME, PBTXT_NAME))
    if path.name == MODEL_FILENAME and is_configured:
        return lone_model(root, name, override)
    problem = _graph_problem(path)
    return ModelFolder(
        name, root, (VersionFolder(1, root, path, problem, override, is_lone=True, is_file=True),), is_lone=True
    )


def _is_text_model(path: Path) -> bool:
    """Whether a model's directory is itself the folder of a text model, as users have it on disk."""
    return is_text_folder(_names_in(path))


def not_a_model_name(name: str) -> str:
    """Why a directory of this name is no model, whatever is in it; "" if it may be one."""
    if name.startswith("."):
        return "hidden directories hold no models"
    return "directories of this name hold no models" if name in _NEVER_MODELS else ""


def say_passed_over(folder: ModelFolder) -> str:
    """The line about a directory that is passed over."""
    missing = "" if not_a_model_name(folder.name) else f", and no {PBTXT_NAME}"
    where = folder.source or folder.path
    return f"'{where}' is passed over, because it does not look like a model: {folder.problem}{missing}"


def has_control_characters(name: str) -> bool:
    """Whether a name holds what is no letter: ends of lines, escapes of terminals, changes of direction."""
    return not name.isprintable() and any(category(letter) in _CONTROL for letter in name)


#: Unicode's categories: control, format, line and paragraph separator.
_CONTROL: Final = frozenset(("Cc", "Cf", "Zl", "Zp"))


def _shown(name: str) -> str:
    """The name of a directory in UTF-8, escaped where it is not, or where it has control characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        name = os.fsencode(name).decode(errors="backslashreplace")
    return printable(name) if has_control_characters(name) else name


def is_version(name: str) -> bool:
    """Whether a directory of this name is a version of its model."""
    # The length is bounded first: int() refuses very long numbers with an error of its own.
    return len(name) <= 19 and _VERSION.fullmatch(name) is not None and int(name) <= _GREATEST_VERSION


def may_be_meant_as_version(name: str) -> bool:
    """Whether a directory of this name, which is no version, may have been meant as one; others are a model's own."""
    before = _BEFORE_NUMBER.match(name)
    assert before is not None
    return name.lower() in ("latest", "current") or name[before.end() : before.end() + 1].isdigit()


def version_folder(
    path: Path,
    filename: str = "",
    triton: TritonConfiguration | None = None,
    *,
    is_lone: bool = False,
) -> VersionFolder:
    """Look at a version's directory.

    Args:
        path: the directory, whose name is the version's number.
        filename: of the graph, or of a directory that holds ``model.onnx``; "" for ``model.onnx``.
        triton: what the model's config.pbtxt says.
        is_lone: whether it is the model's directory as well, of any name; the number is 1 then.
    """
    number = 1 if is_lone else int(path.name)
    filename = filename or MODEL_FILENAME
    model_path = path / filename
    problem, is_directory = _looked_at(model_path, filename)
    if is_directory:
        model_path /= MODEL_FILENAME
        problem = _graph_problem(model_path, filename)
    return VersionFolder(number, path, model_path, problem, triton, is_lone=is_lone)


def _graph_problem(path: Path, filename: str = "") -> str:
    """Why a graph's file cannot be read; "" if nothing stands against it.

    Args:
        path: of the file.
        filename: what the configuration calls it; "" where its directory says nothing of what was meant.
    """
    return _looked_at(path, filename)[0]


def _looked_at(path: Path, filename: str) -> tuple[str, bool]:
    """What ``_graph_problem`` returns, and whether there is a directory instead; as far as that can be found out."""
    try:
        mode = os.stat(path).st_mode
    except PermissionError as exc:
        return f"cannot read '{path}': {exc.strerror}; make it readable for the server's user", False
    except OSError as exc:
        instead = found_instead(_names_in(path.parent), filename) if filename else ""
        return f"unable to find '{path}': {exc.strerror}{instead}", False
    return "" if stat.S_ISREG(mode) else f"'{path}' is not a regular file", stat.S_ISDIR(mode)


def found_instead(names: Collection[str], filename: str = MODEL_FILENAME) -> str:
    """What a version has in place of its graph, with a remedy, to end an error's text; "" if nothing says it.

    Args:
        names: of the files in the version's directory.
        filename: the graph's.
    """
    graphs = sorted(n for n in names if n.endswith(".onnx") and not n.startswith(".") and n not in (filename, ""))
    if graphs:
        return f", but '{graphs[0]}'; rename it to {filename}, or name it in default_model_filename or model_filename"
    other = kind_among_files(names)
    if other is not None:
        return f", but '{other[0]}'; {other[1].plural} are not served, only ONNX models: {other[1].remedy}"
    return ""


def belongs_to_graph(name: str, graph: str) -> bool:
    """Whether a file beside a graph is the graph itself, or has weights of it by what exporters call them.

    Args:
        name: of the file: for model.onnx such as model.onnx_data, model.onnx.data or model.data.
        graph: the graph's.
    """
    return name.startswith(graph) or name == graph.rpartition(".")[0] + ".data"


def _names_in(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _is_directory(directory: Path, name: str) -> bool:
    """Also what a failing disk does not tell: such an entry is shown with its problem, not taken for absent."""
    try:
        return stat.S_ISDIR(os.stat(os.path.join(directory, name)).st_mode)
    except OSError as exc:
        return exc.errno not in _NOTHING_THERE
