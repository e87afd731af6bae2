"""``model_warmup`` of a config.pbtxt."""

from __future__ import annotations

from math import prod
from types import MappingProxyType

from toutates.models.config.problems import Problems
from toutates.models.config.settings import ModelSettings, WarmupData, WarmupInput, WarmupSample, is_inside
from toutates.models.config.yaml_section import MAX_DIMENSION, MAX_RANK
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import DataType, ModelWarmup

__all__ = ["warmup_sample"]


def warmup_sample(sample: ModelWarmup, settings: ModelSettings, problems: Problems) -> WarmupSample:
    """A sample of ``model_warmup``.

    Args:
        sample: the message.
        settings: of the same ModelConfig, for the size of its batches.
        problems: get what is wrong.
    """
    key = f"model_warmup '{sample.name}'"
    if not sample.name:
        problems.add("model_warmup", "a sample has no name", None, "write name: 'zeros'")
    batch_size = sample.batch_size or 1
    if batch_size > settings.batch_size:
        problems.add(f"{key} batch_size", "is above max_batch_size", batch_size, f"write {settings.batch_size}")
    inputs = {name: _input(f"{key} inputs['{name}']", own, problems) for name, own in sample.inputs.items()}
    if not inputs:
        problems.add(f"{key} inputs", "are missing", None, "name every input of the model")
    return WarmupSample(
        sample.name, MappingProxyType(dict(sorted(inputs.items()))), batch_size, min(sample.count or 1, 10**6)
    )


def _input(key: str, tensor: ModelWarmup.Input, problems: Problems) -> WarmupInput:
    datatype = DataType.Name(tensor.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
    if datatype not in BY_NAME:
        problems.add(f"{key} data_type", "is missing", None, "write such as TYPE_FP32")
    dims = tuple(tensor.dims)
    if len(dims) > MAX_RANK or any(not 1 <= size <= MAX_DIMENSION for size in dims) or prod(dims) > MAX_DIMENSION:
        problems.add(f"{key} dims", "must be positive sizes, of one row", list(dims[:MAX_RANK]), "correct them")
    file = ""
    data: WarmupData = "zero"
    match tensor.WhichOneof("input_data_type"):
        case "zero_data":
            pass
        case "random_data":
            data = "random"
        case "input_data_file":
            data, file = "file", tensor.input_data_file
            if not is_inside(file):
                problems.add(f"{key} input_data_file", "leaves the directory 'warmup'", file, "write a plain name")
        case _:
            problems.add(key, "has no data", None, "write zero_data: true, random_data: true or input_data_file")
    return WarmupInput(datatype, dims, data, file)
