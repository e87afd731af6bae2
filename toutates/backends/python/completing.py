"""The configuration of a Python model: what its files say, what ``auto_complete_config`` adds, and the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format

from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.declared import DeclaredTensor
from toutates.models.config.describe import BackendName
from toutates.models.config.other_kinds import PYTORCH_RUNTIME
from toutates.models.config.queues import fill_policies
from toutates.models.config.settings import ModelSettings
from toutates.models.config.triton_configuration import TritonConfiguration, triton_configuration
from toutates.models.config.triton_sequences import sequence_message
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig, ModelInstanceGroup
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError, ModelLoadError

__all__ = [
    "PYTHON",
    "as_dict",
    "backend_of",
    "completed_config",
    "instance_names",
    "parameters_of",
    "signature_of",
    "start_config",
    "with_defaults",
]

#: What a ModelConfig says of the backend.
PYTHON: Final = BackendName("python", filename="model.py")
#: PyTorch's Python runtime, which is a Python model of ours that runs the user's module.
PYTORCH: Final = BackendName("pytorch", filename="model.py")
_BY_CONFIG_NAME: Final = {datatype.config_name: datatype for datatype in BY_NAME.values()}
#: What is taken over from ``auto_complete_config``, beside the tensors.
_SCHEDULERS: Final = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def backend_of(configuration: VersionConfiguration) -> BackendName:
    """What a ModelConfig says of the backend of a version."""
    if configuration.settings.backend != PYTORCH_RUNTIME:
        return PYTHON
    directory = configuration.folder.path
    names = (PYTORCH.filename, "model.pt")
    there = next((name for name in names if (directory / name).is_file()), PYTORCH.filename)
    return replace(PYTORCH, filename=there)


def start_config(model: str, configuration: VersionConfiguration) -> ModelConfig:
    """What the files say, as a ModelConfig: config.pbtxt, or what stands in config.yaml, or neither."""
    config = ModelConfig()
    if configuration.given is not None:
        config.CopyFrom(configuration.given)
    elif configuration.settings.backend:
        settings = configuration.settings
        config.max_batch_size = settings.batch_size if settings.batching else 0
        if settings.sequences is not None:
            config.sequence_batching.CopyFrom(sequence_message(settings.sequences))
        else:
            batching = config.dynamic_batching
            batching.max_queue_delay_microseconds = settings.max_queue_delay_us
            batching.preferred_batch_size.extend(settings.preferred_batch_sizes)
            batching.preserve_ordering = settings.preserve_ordering
            fill_policies(batching, settings.policies, settings.max_queue_size)
        for key, value in settings.parameters.items():
            config.parameters[key].string_value = value
        if settings.num_executors > 1:
            config.instance_group.add(name=model, count=settings.num_executors)
    backend = backend_of(configuration)
    config.name, config.backend = model, backend.name
    config.default_model_filename = configuration.settings.model_filename or backend.filename
    return config


def as_dict(config: ModelConfig) -> dict[str, Any]:
    """A ModelConfig as JSON has it: names of enums, sizes as numbers."""
    found = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _with_numbers(found, "")  # type: ignore[no-any-return]


def _with_numbers(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _with_numbers(own, name) for name, own in value.items()}
    if isinstance(value, list):
        return [_with_numbers(own, key) for own in value]
    # protobuf writes integers of 64 bits as texts.
    return int(value) if key in _NUMBERS and isinstance(value, str) and value.lstrip("-").isdigit() else value


_NUMBERS: Final = frozenset(
    (
        "dims",
        "shape",
        "versions",
        "max_queue_delay_microseconds",
        "default_timeout_microseconds",
        "max_sequence_idle_microseconds",
        "priority_levels",
        "default_priority_level",
    )
)


def completed_config(config: ModelConfig, completed: Mapping[str, Any] | None, model: str) -> ModelConfig:
    """The configuration with what ``auto_complete_config`` has made of it.

    Args:
        config: what it was given.
        completed: what it has returned; None where the model has no such method.
        model: its name.

    Raises:
        ModelLoadError: what it has returned is no configuration.
    """
    whole = ModelConfig()
    whole.CopyFrom(config)
    if completed is None:
        return whole
    taken = {key: completed[key] for key in ("max_batch_size", "input", "output") if key in completed}
    given = config.WhichOneof("scheduling_choice")
    for choice in _SCHEDULERS:
        if choice in completed and given not in (None, choice):
            raise ModelLoadError(f"Cannot update scheduling choice from {given} to {choice} when auto-completing.")
        if choice in completed and given is None:
            taken[choice] = completed[choice]
    if "model_transaction_policy" in completed:
        taken["model_transaction_policy"] = completed["model_transaction_policy"]
    found = ModelConfig()
    try:
        json_format.ParseDict(taken, found, ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise ModelLoadError(f"auto_complete_config of model '{model}' returned no configuration: {error}") from error
    for field in ("input", "output"):
        whole.ClearField(field)
    whole.MergeFrom(found)
    whole.max_batch_size = found.max_batch_size
    return whole


def signature_of(config: ModelConfig, model: str, source: Path) -> tuple[Signature, TritonConfiguration]:
    """The tensors that a complete configuration declares, and what else it says.

    Raises:
        ConfigurationError: it is not complete, or cannot be used.
    """
    said = triton_configuration(config, model, source)
    declared = said.declared
    if not declared.outputs:  # inputs need not be: a model may make its outputs of nothing
        raise ConfigurationError(
            f"the configuration of model '{model}' declares no outputs",
            source=source,
            key="output",
            remedy="write inputs and outputs into config.pbtxt, or call add_input and add_output in "
            "auto_complete_config",
        )
    batched = config.max_batch_size > 0
    signature = Signature(tuple(map(_tensor, declared.inputs)), tuple(map(_tensor, declared.outputs)), batched)
    return signature, said


def _tensor(declared: DeclaredTensor) -> TensorSpec:
    reshape = None if declared.shape == declared.dims else declared.shape
    return TensorSpec(declared.name, _BY_CONFIG_NAME[declared.datatype], declared.dims, declared.optional, reshape)


def parameters_of(config: ModelConfig) -> dict[str, str]:
    """``parameters`` of a configuration."""
    return {key: parameter.string_value for key, parameter in config.parameters.items()}


def instance_names(config: ModelConfig) -> list[tuple[str, str, str]]:
    """Name, kind and device of each instance of a configuration."""
    if not config.instance_group:
        return [(f"{config.name}_0", "CPU", "0")]
    names: list[tuple[str, str, str]] = []
    for at, group in enumerate(config.instance_group):
        kind = ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_").replace("AUTO", "CPU")
        own = [(kind, str(gpu)) for gpu in list(group.gpus) or [0] for _ in range(group.count or 1)]
        names += [(f"{group.name or f'{config.name}_{at}'}_{number}", *one) for number, one in enumerate(own)]
    return names


def with_defaults(
    settings: ModelSettings, said: TritonConfiguration, configuration: VersionConfiguration
) -> ModelSettings:
    """The settings of a version: of its config.yaml where it has one, else of the complete configuration."""
    if configuration.given is None and configuration.settings.backend:
        return replace(settings, batch_size=said.settings.batch_size, batching=said.settings.batching)
    return said.settings
