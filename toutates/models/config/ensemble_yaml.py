"""The plain form of an ensemble: a config.yaml with steps, read as the ModelConfig that says the same, and written."""

from __future__ import annotations

from typing import Final

import yaml

from toutates.models.config.yaml_section import Section
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import DataType, ModelConfig, ModelEnsembling

__all__ = ["ENSEMBLE", "read_ensemble", "write_ensemble"]

#: The name of the backend of ensembles, and their platform.
ENSEMBLE: Final = "ensemble"

_MAX_INFLIGHT: Final = 2**32 - 1
_MAX_VERSION: Final = 2**63 - 1
_TENSOR: Final = "{datatype: FP32, shape: [64]}"
_STEP: Final = "steps: [{model: prep, inputs: {IN: RAW}, outputs: {OUT: t0}}]"


def read_ensemble(section: Section, batch_size: int) -> ModelConfig:
    """The tensors and steps of a config.yaml. What is wrong is noted in the section's list.

    Args:
        section: the whole file.
        batch_size: rows of one request at most that members must take; 0 where the ensemble is not batched.
    """
    config = ModelConfig(platform=ENSEMBLE, max_batch_size=batch_size)
    for role, tensors in (("inputs", config.input), ("outputs", config.output)):
        mapping = section.mapping(role, f"{role}: {{RAW: {_TENSOR}}}")
        for name, tensor in mapping.subsections(f"RAW: {_TENSOR}") if mapping is not None else ():
            datatype = tensor.choice("datatype", list(BY_NAME))
            type_ = BY_NAME.get(datatype, BY_NAME["FP32"])
            made = tensors.add(
                name=name,
                data_type=DataType.Value(type_.config_name),
                dims=tensor.shape("shape"),
            )
            if role == "inputs" and tensor.optional_flag("optional"):
                made.optional = True  # type: ignore[union-attr]
            tensor.refuse_unknown_keys()
    scheduling = config.ensemble_scheduling
    scheduling.SetInParent()
    scheduling.max_inflight_requests = section.optional_integer("max_inflight_requests", _MAX_INFLIGHT, 16, 0) or 0
    for step in section.sections("steps", _STEP):
        scheduling.step.append(_step(step))
    return config


def _step(section: Section) -> ModelEnsembling.Step:
    version = section.optional_integer("version", _MAX_VERSION, 1)
    step = ModelEnsembling.Step(model_name=section.required_text("model", "prep"), model_version=version or -1)
    for key, mapping in (("inputs", step.input_map), ("outputs", step.output_map)):
        own = section.mapping(key, f"{key}: {{MEMBERS_NAME: ENSEMBLES_NAME}}")
        mapping.update(own.words() if own is not None else {})
    section.refuse_unknown_keys()
    return step


def write_ensemble(config: ModelConfig, capacity: int) -> str:
    """The text of the config.yaml that says the same as a ModelConfig of an ensemble."""
    scheduling = config.ensemble_scheduling
    names = {datatype.config_name: datatype.name for datatype in BY_NAME.values()}
    lines = [f"backend: {ENSEMBLE}"]
    lines += [f"batch_size: {config.max_batch_size}"] if config.max_batch_size else ["batching: false"]
    lines.append(f"capacity: {capacity}")
    lines.append(f"max_inflight_requests: {scheduling.max_inflight_requests}")
    for role, tensors in (("inputs", config.input), ("outputs", config.output)):
        lines.append(f"{role}:")
        for tensor in tensors:
            value: dict[str, object] = {"datatype": names[DataType.Name(tensor.data_type)], "shape": list(tensor.dims)}
            if getattr(tensor, "optional", False):
                value["optional"] = True
            lines.append(f"  {_flow(tensor.name)}: {_flow(value)}")
    lines.append("steps:")
    for step in scheduling.step:
        lines.append(f"  - model: {_flow(step.model_name)}")
        if step.model_version != -1:
            lines.append(f"    version: {step.model_version}")
        for key, mapping in (("inputs", step.input_map), ("outputs", step.output_map)):
            lines.append(f"    {key}: {_flow(dict(sorted(mapping.items())))}")
    labels = {tensor.name: tensor.label_filename for tensor in config.output if tensor.label_filename}
    if labels:
        lines.append(f"labels: {_flow(labels)}")
    return "\n".join(lines) + "\n"


def _flow(value: object) -> str:
    """A value on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=2**20, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("...").rstrip("\n")
