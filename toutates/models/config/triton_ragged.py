"""``allow_ragged_batch``, ``batch_input`` and ``batch_output`` of a config.pbtxt, in Triton's words where wrong."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from toutates.models.config.problems import Problems
from toutates.models.config.ragged import (
    BATCH_INPUT_TYPES,
    KINDS,
    MadeInput,
    RaggedKeys,
    RaggedSettings,
    ScatteredOutput,
)
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import BatchInput, BatchOutput, DataType, ModelConfig

__all__ = ["PBTXT_RAGGED_KEYS", "add_ragged", "ragged_settings"]

#: What a config.pbtxt calls the parts.
PBTXT_RAGGED_KEYS: Final = RaggedKeys(
    "input '{}' allow_ragged_batch", "batch_input '{}'", "batch_output '{}'", "allow_ragged_batch or batch_input"
)

_TYPES: Final = {BY_NAME[name].config_name: name for name in BATCH_INPUT_TYPES}


def ragged_settings(config: ModelConfig, problems: Problems) -> RaggedSettings | None:
    """What a ModelConfig says in its fields, without the parameter of the most elements; None where it has none.

    Args:
        config: the message.
        problems: get what is wrong.
    """
    ragged = [tensor for tensor in config.input if tensor.allow_ragged_batch]
    if not ragged and not config.batch_input:
        if config.batch_output:
            problem = "has no input with allow_ragged_batch beside it"
            problems.add("batch_output", problem, None, "write allow_ragged_batch: true, or remove batch_output")
        return None
    if not config.max_batch_size:
        key = "input.allow_ragged_batch" if ragged else "batch_input"
        remedy = "write such as max_batch_size: 16, or remove it"
        problems.add(key, "is for models whose requests are batched", None, remedy)
    if config.HasField("sequence_batching"):
        problem = "does not go with ragged inputs or batch inputs: rows of a sequence are joined by slot"
        problems.add("sequence_batching", problem, None, "remove one of them")
    for tensor in ragged:
        if tensor.HasField("reshape"):
            problem = "does not go with allow_ragged_batch, whose rows lose their shape"
            problems.add(f"input '{tensor.name}' reshape", problem, list(tensor.reshape.shape), "remove one of them")
    inputs = {tensor.name: (-1, *tensor.dims) for tensor in ragged}
    made = [one for entry in config.batch_input for one in _made(entry, config, problems)]
    outputs: dict[str, ScatteredOutput] = {}
    for entry in config.batch_output:
        outputs |= _scattered(entry, config, outputs, problems)
    return RaggedSettings(MappingProxyType(inputs), tuple(made), MappingProxyType(outputs))


def _made(entry: BatchInput, config: ModelConfig, problems: Problems) -> list[MadeInput]:
    targets = list(entry.target_name)
    key = f"batch_input '{', '.join(targets)}'"
    kind = BatchInput.Kind.Name(entry.kind)
    if not targets:
        problems.add("batch_input target_name", "is missing", None, "name the input of the graph that is to be made")
    source = _source(key, f"batch input kind '{kind}'", list(entry.source_input), config, problems)
    datatype = _TYPES.get(DataType.Name(entry.data_type), "")
    if not datatype:
        value = DataType.Name(entry.data_type)
        problems.add(
            f"{key} data_type", "must be TYPE_INT32, TYPE_INT64 or TYPE_FP32", value, "write such as TYPE_INT32"
        )
    declared = {tensor.name for tensor in config.input}
    for name in targets:
        if name in declared:
            problem = "is declared as an input of clients too"
            problems.add(f"batch_input '{name}'", problem, None, "remove it from `input`: the server makes it")
    return [MadeInput(name, KINDS[entry.kind], source, datatype or "INT32") for name in targets]


def _scattered(
    entry: BatchOutput, config: ModelConfig, before: dict[str, ScatteredOutput], problems: Problems
) -> dict[str, ScatteredOutput]:
    targets = list(entry.target_name)
    key = f"batch_output '{', '.join(targets)}'"
    kind = BatchOutput.Kind.Name(entry.kind)
    if not targets:
        problems.add("batch_output target_name", "is missing", None, "name an entry of `output`")
    source = _source(key, f"batch output kind '{kind}'", list(entry.source_input), config, problems)
    declared = {tensor.name: tensor for tensor in config.output}
    found: dict[str, ScatteredOutput] = {}
    for name in targets:
        own = declared.get(name)
        if own is None:
            problem = f"unknown target output name '{name}'"
            problems.add(f"batch_output '{name}'", problem, None, "declare it in `output`, with the dims of a row")
            continue
        if name in before or name in found:
            problems.add(f"batch_output '{name}'", "is specified twice", None, "keep one of them")
        if own.HasField("reshape"):
            problem = "does not go with batch_output, which gives the output its shape"
            problems.add(f"output '{name}' reshape", problem, list(own.reshape.shape), "remove one of them")
        found[name] = ScatteredOutput(source, (-1, *own.dims))
    return found


def _source(key: str, who: str, sources: list[str], config: ModelConfig, problems: Problems) -> str:
    if len(sources) != 1:
        problems.add(f"{key} source_input", f"{who} expects 1 source input, got {len(sources)}", None, "name one input")
        return sources[0] if sources else ""
    if config.input and sources[0] not in {tensor.name for tensor in config.input}:
        names = ", ".join(tensor.name for tensor in config.input)
        problem = f"unknown source input name '{sources[0]}'"
        problems.add(f"{key} source_input", problem, None, f"the inputs of clients: {names}")
    return sources[0]


def add_ragged(config: ModelConfig, settings: RaggedSettings) -> None:
    """Write settings into a ModelConfig that has the tensors already."""
    for tensor in config.input:
        if tensor.name in settings.inputs:
            tensor.allow_ragged_batch = True
    for own in settings.made:
        config.batch_input.add(
            kind=BatchInput.Kind.values()[KINDS.index(own.kind)],
            target_name=[own.name],
            data_type=DataType.Value(BY_NAME[own.datatype].config_name),
            source_input=[own.source],
        )
    for name, cut in settings.outputs.items():
        config.batch_output.add(target_name=[name], source_input=[cut.source])
