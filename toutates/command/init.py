"""``toutates init DIR``: a repository to begin with, whose files say what can be written into them."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Final

from toutates.models.config.settings import CONFIG_NAME, MODEL_FILENAME
from toutates.repositories.making import work_directory
from toutates.system.errors import ConfigurationError

__all__ = ["init_repository"]

#: A graph of one operator: OUTPUT = Softmax(INPUT), both FP32 [batch, 4]. Written by the package onnx, which need not
#: be installed; ``tests/command/test_init.py`` writes it again.
_GRAPH: Final = base64.b64decode(
    "CAgSCHRvdXRhdGVzOmAKGAoFSU5QVVQSBk9VVFBVVCIHU29mdG1heBIHZXhhbXBsZVocCgVJTlBVVBITChEIARINCgcSBWJhdGNo"
    "CgIIBGIdCgZPVVRQVVQSEwoRCAESDQoHEgViYXRjaAoCCARCBAoAEBE="
)

_CONFIG: Final = """\
# How version 1 of this model is served. The values of the first five keys are those that hold without this file.
# Every key is in docs/model-repository.md; 'toutates config DIR' prints what holds for a model.

# What computes the model: ONNX Runtime, behind batches of rows that requests of all clients share.
backend: supertensor

# Rows that are run together, at most. A request may have several rows, and no more than this.
batch_size: 64

# So many batches of rows may wait or run; more rows are refused (RESOURCE_EXHAUSTED) until some are answered.
capacity: 16

# Sessions of ONNX Runtime that run in parallel, each in a thread of its own.
num_executors: 1

# Memory of the batches: cpu, or cuda_pinned for a model on a GPU.
allocator: cpu

# --- optional ---------------------------------------------------------------------------------------------------------

# Axes that the graph leaves open have to be of one size before rows can share a batch; -1 is the batch.
# input_shapes: {INPUT: [-1, 4]}
# output_shapes: {OUTPUT: [-1, 4]}

# Wait for more rows, up to so many microseconds, before a batch that is not full is run.
# max_queue_delay_us: 100

# Where the sessions run: one entry for all, or one for each executor. auto, cpu, gpu, or gpu:1 for the second GPU.
# devices: [auto]

# Threads within one operator. More than one helps large models.
# session: {intra_threads: 1}

# Run this before the version is served, so that the first request is as fast as the others.
# warmup: [{name: first, batch_size: 1, inputs: {INPUT: {datatype: FP32, shape: [4], data: zero}}}]
"""


def init_repository(folder: Path, model: str) -> Path:
    """Write a repository with one model, or add the model to one. Blocks.

    Args:
        folder: the repository; made if it is not there.
        model: its name.

    Returns:
        The model's directory.

    Raises:
        ConfigurationError: there is something of that name already, or the folder cannot be written.
    """
    place = folder / model
    taken = ConfigurationError("is there already, and stays as it is", source=place, remedy="give another --name")
    if os.path.lexists(place):
        raise taken
    if os.path.lexists(folder) and not folder.is_dir():
        raise ConfigurationError("is no folder", key="DIR", value=str(folder), remedy="name another one")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot be made: {error.strerror}", source=folder.parent) from error
    with work_directory(folder, folder / model, "the model") as work:
        version = work / model / "1"
        version.mkdir(parents=True)
        (version / MODEL_FILENAME).write_bytes(_GRAPH)
        (version / CONFIG_NAME).write_text(_CONFIG)
        if os.path.lexists(place):  # meanwhile; a directory that is not empty would not be replaced in any case
            raise taken
        (work / model).rename(place)
    return place
