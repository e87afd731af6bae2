"""The cache as earlier versions kept it: it is removed, unless a server of such a version still uses it."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Final

from toutates.system.file_lock import try_lock

__all__ = ["remove_old_form"]

logger = logging.getLogger(__name__)

_FOLDERS: Final = ("objects", "partial", "views")


def remove_old_form(root: Path) -> None:
    """Remove the files that another form of the cache has left in this directory. Under its lock.

    Raises:
        OSError: a lock of it cannot be read.
    """
    folders = [root / name for name in _FOLDERS if (root / name).is_dir()]
    if not folders:
        return
    for lock in root.glob("views/*/lock"):
        descriptor = try_lock(lock)
        if descriptor is None:
            logger.info("'%s' has files of an older version, which a server uses; a later start removes them", root)
            return
        os.close(descriptor)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    logger.info("'%s' had files of an older version, which are removed; models are downloaded anew", root)
