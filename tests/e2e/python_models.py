"""Repositories of Python models for tests."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

__all__ = ["HEAD", "IDENTITY", "add_model"]

IDENTITY = """
def execute(self, requests):
    return [answer(request, input_of(request)) for request in requests]
"""

HEAD = """\
import os, signal, sys, time
import numpy as np
import triton_python_backend_utils as pb_utils


def input_of(request, name="x"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def answer(request, array, name="y", **more):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)], **more)


class TritonPythonModel:
"""


def add_model(
    repository: Path,
    name: str,
    methods: str = IDENTITY,
    *,
    datatype: str = "FP32",
    dims: str = "[ 4 ]",
    rows: int = 8,
    more: str = "dynamic_batching {}",
    tensors: bool = True,
    head: str = HEAD,
    isolation: str = "process",
) -> Path:
    """A Python model with an input x and an output y; returns its directory.

    Args:
        repository: gets it.
        name: of the model.
        methods: of the class.
        datatype, dims: of both tensors.
        rows: ``max_batch_size``.
        more: of config.pbtxt.
        tensors: whether config.pbtxt declares them.
        head: what comes before the methods.
        isolation: where its code runs.
    """
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(head + indent(dedent(methods), "    "))
    declared = f'[ {{ name: "%s" data_type: TYPE_{datatype} dims: {dims} }} ]'
    text = f'backend: "python"\nmax_batch_size: {rows}\n{more}\n'
    text += f'parameters {{ key: "toutates.isolation" value {{ string_value: "{isolation}" }} }}\n'
    if tensors:
        text += f"input {declared % 'x'}\noutput {declared % 'y'}\n"
    (folder / "config.pbtxt").write_text(text)
    return folder
