"""One arena of CPU memory for the sessions of all small models.

An arena takes 32 KiB for its own tables at the first run of a session, as much as the weights of a small model, and
keeps the memory of the session's largest run. Shared, its memory is that of the runs that there are at a time. A run
takes as long with it as with an arena of the session's own.

Large models keep arenas of their own, whose memory is given back as a whole when the model leaves.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from typing import Any, Final

import numpy as np
import onnxruntime

from toutates.models.repository import VersionFolder
from toutates.system.text import one_line

__all__ = ["SHRINK_ENTRY", "TINY_MODEL", "USE_SHARED_ENTRY", "give_back_shared_arena", "is_small", "shared_arena"]

logger = logging.getLogger(__name__)

#: Held while the arena is made: models are loaded in several threads, and ONNX Runtime refuses a second one.
_making = threading.Lock()

#: A model is small whose files take less than this together, bytes.
SMALL_BYTES: Final = 1024 * 1024
#: Entry of a session's configuration by which it uses the shared arena.
USE_SHARED_ENTRY: Final = ("session.use_env_allocators", "1")
#: Entry of a run's options by which the arena of the CPU gives memory back that no session uses.
SHRINK_ENTRY: Final = "memory.enable_memory_arena_shrinkage"

#: An ONNX file: y = Identity(x), one float; of opset 13, which every ONNX Runtime since 1.8 reads.
TINY_MODEL: Final = bytes.fromhex(
    "08073a370a100a017812017922084964656e746974791201675a0f0a0178120a"
    "0a08080112040a020801620f0a0179120a0a08080112040a02080142040a00100d"
)


def is_small(version: VersionFolder) -> bool:
    """Whether a model is small: the file and those beside it, where its weights may be."""
    if version.size is not None:
        return version.size < SMALL_BYTES
    size = 0
    try:
        with os.scandir(version.model_path.parent) as entries:
            for entry in entries:
                size += entry.stat().st_size
                if size >= SMALL_BYTES or entry.is_dir():
                    return False
    except OSError:
        return False
    return True


def shared_arena() -> bool:
    """Make the arena, once in a process; whether there is one."""
    with _making:
        return _make_arena()


@functools.cache
def _make_arena() -> bool:
    try:
        where = onnxruntime.OrtMemoryInfo(
            "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
        )
        onnxruntime.create_and_register_allocator(where, None)
    except Exception as error:  # ONNX Runtime's exceptions share no base class of its own
        logger.info("small models have arenas of their own, because there is none to share: %s", one_line(error, 300))
        return False
    return True


def give_back_shared_arena() -> None:
    """Give memory of the arena back that no session uses, if there is one. Takes some microseconds."""
    if shared_arena():
        session, options = _shrinker()
        session.run(None, {"x": np.zeros(1, np.float32)}, options)


@functools.cache
def _shrinker() -> tuple[Any, onnxruntime.RunOptions]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry(*USE_SHARED_ENTRY)
    run = onnxruntime.RunOptions()
    run.add_run_config_entry(SHRINK_ENTRY, "cpu:0")
    return onnxruntime.InferenceSession(TINY_MODEL, options, providers=["CPUExecutionProvider"]), run
