"""``EXECUTION_ENV_PATH``: the environment that a model's processes run in, a folder or an archive of conda-pack.

An archive is unpacked once for all models that name it (``environment_archives``), and what came out of it is removed
with the last of them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from functools import partial
from pathlib import Path
from threading import Thread

from toutates.backends.python.environment_archives import unpack_environment
from toutates.backends.python.process import Interpreter
from toutates.models.config.settings import MODEL_DIRECTORY
from toutates.system.errors import ModelLoadError
from toutates.system.text import text_of

__all__ = ["Environments"]


class Environments:
    """Finds, and unpacks, the environments of models. Any thread may use it."""

    def __init__(self) -> None:
        #: held while an archive is unpacked, which takes long
        self._unpacking = threading.Lock()
        #: of ``_unpacked`` and ``_uses``, for constant time: models are freed on the main thread
        self._lock = threading.Lock()
        self._folder: Path | None = None
        #: by path, size and time of an archive
        self._unpacked: dict[tuple[str, int, int], Path] = {}
        #: by folder, how many versions need it
        self._uses: dict[Path, int] = {}
        self._count = 0

    def interpreter(self, given: str, model_dir: Path) -> Interpreter:
        """What runs the processes of a model. Blocks while an archive is unpacked.

        Args:
            given: the parameter; "" for the server's own interpreter.
            model_dir: that ``$$TRITON_MODEL_DIRECTORY`` stands for.

        Raises:
            ModelLoadError: there is no such environment.
        """
        if not given:
            return Interpreter()
        path = Path(given.replace(MODEL_DIRECTORY, str(model_dir)))
        try:
            path = path.resolve(strict=True)
            folder = path if path.is_dir() else self._unpack(path)
        except (OSError, ModelLoadError) as error:
            raise ModelLoadError(f"EXECUTION_ENV_PATH '{path}' cannot be used: {text_of(error)}") from error
        activate, python = folder / "bin" / "activate", folder / "bin" / "python"
        problem = ""
        if not activate.exists():
            problem = f"Path {activate} does not exist. The Python environment should contain an 'activate' script."
        elif not os.access(python, os.X_OK):
            problem = f"EXECUTION_ENV_PATH '{path}' has no program bin/python"
        if problem:
            if self._let_go(folder):
                shutil.rmtree(folder, ignore_errors=True)
            raise ModelLoadError(problem)
        found = {"VIRTUAL_ENV": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
        if (folder / "conda-meta").exists():
            libraries = os.environ.get("LD_LIBRARY_PATH", "")
            found = {
                "CONDA_PREFIX": str(folder),
                "PATH": found["PATH"],
                "LD_LIBRARY_PATH": f"{folder / 'lib'}{os.pathsep + libraries if libraries else ''}",
            }
        own = {**found, "PYTHONHOME": ""} if "PYTHONHOME" in os.environ else found
        return Interpreter((str(python),), own, release=partial(self._release, folder))

    def _let_go(self, folder: Path) -> bool:
        """One version less needs a folder. Returns whether it was the last: the next one unpacks the archive again."""
        with self._lock:
            if folder not in self._uses:
                return False  # it was not unpacked
            self._uses[folder] -= 1
            if self._uses[folder]:
                return False
            del self._uses[folder]
            self._unpacked = {key: own for key, own in self._unpacked.items() if own != folder}
            return True

    def _release(self, folder: Path) -> None:
        """``_let_go``, and remove what nobody needs: beside the caller, because it may take seconds."""
        if self._let_go(folder):
            Thread(target=shutil.rmtree, args=(folder, True), name="environment-removal").start()

    def _unpack(self, archive: Path) -> Path:
        status = archive.stat()
        key = str(archive), status.st_size, status.st_mtime_ns
        with self._unpacking:
            with self._lock:
                known = self._unpacked.get(key)
                if known is not None and known.is_dir():
                    self._uses[known] += 1
                    return known
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="toutates-environments-"))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            # A name of its own: what the same archive has left may be under way out.
            self._count += 1
            folder = self._folder / str(self._count)
            try:
                unpack_environment(archive, folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            with self._lock:
                self._unpacked[key] = folder
                self._uses[folder] = 1
            return folder
