"""Triton's ModelConfig as the settings of this server: what a config.pbtxt beside the version directories says.

What is left out is completed as Triton does for ONNX models, but for the defaults of this server: ``max_batch_size``
becomes 64 where Triton takes 4, and there is one instance where Triton has two on the CPU. Where ``input`` and
``output`` are both there, nothing is completed: without ``max_batch_size`` the model is not batched. It is not either
where ``max_batch_size: 0`` is written.

A batched model's requests are joined with or without ``dynamic_batching``. ``max_batch_size`` promises that rows do not
depend on each other, and clients may put any rows together; joining others' makes none of them wait.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from toutates.models.config.declared import Declared
from toutates.models.config.enums import check_enums
from toutates.models.config.other_kinds import PYTORCH_RUNTIME, backend_of_platform
from toutates.models.config.pbtxt import PBTXT_NAME, config_of, read_pbtxt_file, says_batch_size
from toutates.models.config.problems import Problems
from toutates.models.config.queues import triton_policies, waiting_requests
from toutates.models.config.settings import (
    DEFAULT_ROWS,
    MAX_BATCH_SIZE,
    MAX_CAPACITY,
    MAX_DELAY_US,
    MAX_EXECUTORS,
    ONNX_BACKENDS,
    ModelSettings,
    RateLimit,
    ResourceNeed,
    is_inside,
)
from toutates.models.config.triton_fields import PARAMETERS, check_fields
from toutates.models.config.triton_ragged import ragged_settings
from toutates.models.config.triton_sequences import added_inputs, added_outputs, sequence_settings
from toutates.models.config.triton_session import with_parameters, with_session
from toutates.models.config.triton_tensors import declared_tensors
from toutates.models.config.triton_warmup import warmup_sample
from toutates.protocol.model_config_pb2 import (
    ModelConfig,
    ModelInstanceGroup,
    ModelVersionPolicy,
)
from toutates.system.remembered import Remembered
from toutates.system.text import shown

__all__ = ["BACKEND", "PLATFORM", "TritonConfiguration", "read_triton_configuration", "triton_configuration"]

PLATFORM: Final = "onnxruntime_onnx"
BACKEND: Final = "onnxruntime"

#: With an underscore before it, what Prometheus takes for the name of a label.
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,99}")
# Every series of the model has all of them, in each scrape.
_MAX_TAGS: Final = 32
_MAX_TAG_VALUE: Final = 256

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TritonConfiguration:
    """What a config.pbtxt says.

    Attributes:
        source: the file.
        settings: of every version.
        declared: of the tensors, to be compared with the graph.
        given: the whole of it, as it was written. Nobody changes it.
        version_policy: which versions are served.
        passed_over: the fields that the server does not act on.
    """

    source: Path
    settings: ModelSettings
    declared: Declared
    given: ModelConfig
    version_policy: ModelVersionPolicy
    passed_over: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """The fields that are passed over, in one sentence; "" if there are none."""
        if not self.passed_over:
            return ""
        named = "; ".join(self.passed_over)
        return f"'{self.source}': passed over, because this server does not act on it: {named}"

    def chosen(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Which of the versions that are there are served, ascending; and which are not there, and should be."""
        policy = self.version_policy
        match policy.WhichOneof("policy_choice"):
            case "all":
                return sorted(numbers), []
            case "specific":
                wanted = sorted(set(policy.specific.versions))
                return [number for number in wanted if number in numbers], [n for n in wanted if n not in numbers]
        return sorted(numbers)[-policy.latest.num_versions :], []


#: A file up to this size is remembered: what it comes to takes a few times as much.
_REMEMBERED_BYTES: Final = 16_384
_MOST_REMEMBERED: Final = 128
#: The first line of most files.
_NAME: Final = re.compile(rb"""\s*name\s*:\s*(["'])([^"'\\\n]*)\1[ \t]*\n""")
#: What files come to, by their bytes behind the model's name, and whether that was there. Many models have the same
#: one but for the name, and share what it comes to; to find that out anew takes a millisecond.
_KNOWN: Final[Remembered[tuple[bytes, bool], TritonConfiguration]] = Remembered(_MOST_REMEMBERED)


def read_triton_configuration(model_dir: Path, name: str = "") -> TritonConfiguration | None:
    """Read the config.pbtxt of a model's directory; None where there is none.

    Args:
        model_dir: the directory.
        name: of the model; "" for the directory's.

    Raises:
        ConfigurationError: it cannot be read, or the model cannot be served so; with a line for each problem.
    """
    source = model_dir / PBTXT_NAME
    data = read_pbtxt_file(source)
    if data is None:
        return None
    model = name or model_dir.name
    rest = _without_name(data, model)
    key = (rest, rest is not data)
    known = _KNOWN.get(key)
    if known is not None and (rest is not data or known.given.name in ("", model)):
        given = known.given
        if given.name not in ("", model):
            given = ModelConfig()
            given.CopyFrom(known.given)
            given.name = model
        declared = replace(known.declared, source=source, model=model)
        return replace(known, source=source, declared=declared, given=given)
    found = triton_configuration(config_of(data, source), model, source, says_batch_size=says_batch_size(data))
    if len(data) <= _REMEMBERED_BYTES:
        _KNOWN.put(key, found)
    return found


def _without_name(data: bytes, model: str) -> bytes:
    """What follows the model's name, where a file begins with it; else all of the file, the same object."""
    found = _NAME.match(data)
    return data[found.end() :] if found is not None and found[2] == model.encode() else data


def triton_configuration(
    config: ModelConfig, model: str, source: Path, *, says_batch_size: bool = False
) -> TritonConfiguration:
    """What a ModelConfig says, wherever it comes from.

    Args:
        config: the message.
        model: name of the model's directory.
        source: what errors name; paths are taken from nowhere but the message.
        says_batch_size: whether ``max_batch_size`` was written: 0 then switches batching off.

    Raises:
        ConfigurationError: the model cannot be served so; with a line for each problem.
    """
    return _Reader(config, model, source, says_batch_size=says_batch_size).read()


class _Reader:
    """Goes through one ModelConfig; what is wrong is collected."""

    def __init__(self, config: ModelConfig, model: str, source: Path, *, says_batch_size: bool) -> None:
        self._config, self._model, self._source = config, model, source
        self._says_batch_size = says_batch_size
        self._problems = Problems(source)
        self._ignored: list[str] = []

    def read(self) -> TritonConfiguration:
        config = self._config
        check_enums(config, self._problems)
        self._problems.raise_all()  # nothing reads a message with such numbers
        backend = self._backend()
        # What the fields mean that are not the same for all backends is for the backend's own kind to say.
        is_onnx = not backend or backend in ONNX_BACKENDS
        if is_onnx:
            self._apply_rules()
        if config.HasField("ensemble_scheduling") and backend != "ensemble":
            problem = f"ensemble scheduling cannot be set for model '{self._model}' whose platform is not ensemble"
            self._problems.add("ensemble_scheduling", problem, None, "write platform: 'ensemble', or remove it")
        self._check_name()
        inputs, outputs = declared_tensors(config, self._model, self._problems, all_required=is_onnx)
        settings = self._with_queue(self._with_instances(self._with_batching(ModelSettings())))
        if is_onnx:
            settings = replace(settings, ragged=ragged_settings(config, self._problems))
        settings = (with_session if is_onnx else with_parameters)(settings, config, self._problems)
        settings = replace(
            settings,
            backend=backend,
            warmup=tuple(warmup_sample(sample, settings, self._problems) for sample in config.model_warmup),
            model_filename=self._filename(),
            labels=self._labels(),
            sequences=sequence_settings(config, self._model, self._problems),
            response_cache=config.response_cache.enable,
        )
        self._check_metric_tags()
        policy = self._version_policy()
        self._problems.raise_all()
        sequences = settings.sequences
        if sequences is not None:
            # Clients do not see these; the graph must have them.
            outputs = (*outputs, *added_outputs(sequences, outputs)) if outputs else ()
            inputs = (*inputs, *added_inputs(sequences)) if inputs else ()
        return TritonConfiguration(
            self._source,
            settings,
            Declared(
                self._source,
                self._model,
                config.max_batch_size,
                inputs,
                outputs,
                is_unbatched=self._says_batch_size and not config.max_batch_size,
            ),
            config,
            policy,
            tuple(self._ignored),
        )

    # --- the whole message -------------------------------------------------------------------------------------------

    def _apply_rules(self) -> None:
        self._ignored += check_fields(self._config, self._problems)
        self._ignored += [f"parameters['{key}']" for key in sorted(self._config.parameters) if key not in PARAMETERS]

    def _check_name(self) -> None:
        config = self._config
        if config.name and config.name != self._model:
            self._problems.add(
                "name",
                f"unexpected directory name '{self._model}' for model '{config.name}', directory name must equal model "
                "name",
                None,
                f"write name: '{self._model}', or leave it out",
            )

    def _backend(self) -> str:
        """The name of the backend, as ``backend`` or ``platform`` gives it; "" where neither is there."""
        platform, backend = self._config.platform, self._config.backend
        own = backend_of_platform(platform)
        if platform and own is None:
            remedy = f"write platform: '{PLATFORM}'" if "onnx" in platform else "name the backend in `backend` instead"
            self._problems.add("platform", "is not known", platform, remedy)
        elif platform and backend and backend != own:
            problem = f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}"
            self._problems.add("platform", problem, None, "keep the right one of the two")
        name = backend or own or ""
        if name == "pytorch" and self._config.runtime == "model.py":
            return PYTORCH_RUNTIME
        return name

    def _version_policy(self) -> ModelVersionPolicy:
        policy = ModelVersionPolicy()
        policy.CopyFrom(self._config.version_policy)
        choice = policy.WhichOneof("policy_choice")
        if choice is None or (choice == "latest" and not policy.latest.num_versions):
            policy.latest.num_versions = 1
        if choice == "specific" and any(number < 1 for number in policy.specific.versions):
            self._problems.add(
                "version_policy.specific.versions",
                "names what is no version",
                list(policy.specific.versions),
                "write positive integers",
            )
        return policy

    def _filename(self) -> str:
        name = self._config.default_model_filename
        if name and not is_inside(name):
            self._problems.add("default_model_filename", "leaves the version's directory", name, "write a plain name")
        return name

    def _labels(self) -> Mapping[str, str]:
        """Files of labels by output."""
        files = {tensor.name: tensor.label_filename for tensor in self._config.output if tensor.label_filename}
        for name, file in files.items():
            if not is_inside(file):
                key = f"output '{name}' label_filename"
                self._problems.add(key, "leaves the model's directory", file, "write a plain name, such as labels.txt")
        return MappingProxyType(files)

    def _check_metric_tags(self) -> None:
        """Each becomes a label of the model's nv_ metrics, its key behind an underscore."""
        tags = self._config.metric_tags
        if len(tags) > _MAX_TAGS:
            self._problems.add("metric_tags", f"has more than {_MAX_TAGS} entries", len(tags), "write fewer")
        for key, value in sorted(tags.items())[:_MAX_TAGS]:
            if not _TAG.fullmatch(key) or len(value) > _MAX_TAG_VALUE:
                self._problems.add(
                    f"metric_tags['{shown(key)}']",
                    "cannot be a label of metrics",
                    shown(value),
                    f"write a key of letters, digits and underscores, and at most {_MAX_TAG_VALUE} characters",
                )

    # --- batching and instances --------------------------------------------------------------------------------------

    def _with_batching(self, settings: ModelSettings) -> ModelSettings:
        config, batching = self._config, self._config.dynamic_batching
        most = config.max_batch_size
        if not 0 <= most <= MAX_BATCH_SIZE:
            self._problems.add("max_batch_size", f"is not from 0 to {MAX_BATCH_SIZE}", most, "write such as 64")
        complete = bool(config.input and config.output) or self._says_batch_size
        batch_size = most if most > 0 else 1 if complete else settings.batch_size
        for size in batching.preferred_batch_size:
            if not 1 <= size <= batch_size:
                bound = "must be positive" if size < 1 else "must be <= max batch size"
                self._problems.add(
                    "dynamic_batching.preferred_batch_size",
                    f"dynamic batching preferred size {bound} for {self._model}",
                    size,
                    f"write sizes from 1 to {batch_size}",
                )
        preferred = tuple(sorted(set(batching.preferred_batch_size)))
        if batching.max_queue_delay_microseconds > MAX_DELAY_US:
            self._problems.add(
                "dynamic_batching.max_queue_delay_microseconds",
                f"is above {MAX_DELAY_US}",
                batching.max_queue_delay_microseconds,
                "write microseconds that a client would wait for, such as 500",
            )
        return replace(
            settings,
            batching=most > 0 or not complete,
            joined_by="dynamic_batching" if config.HasField("dynamic_batching") else "",
            batch_size=batch_size,
            capacity=max(-(-DEFAULT_ROWS // batch_size), settings.capacity),
            max_queue_delay_us=batching.max_queue_delay_microseconds,
            # The greatest alone is what there is without the field.
            preferred_batch_sizes=() if preferred == (batch_size,) else preferred,
            preserve_ordering=batching.preserve_ordering,
            policies=triton_policies(config, self._model, self._problems),
        )

    def _with_queue(self, settings: ModelSettings) -> ModelSettings:
        """Where the queue is bounded, by requests, there is room for the rows of all of them beside those that run."""
        queue_size = self._config.dynamic_batching.default_queue_policy.max_queue_size
        waiting = waiting_requests(settings.policies, queue_size)
        capacity = min(max(settings.capacity, waiting + settings.num_executors), MAX_CAPACITY) if waiting else 0
        return replace(settings, capacity=capacity or settings.capacity, max_queue_size=queue_size)

    def _with_instances(self, settings: ModelSettings) -> ModelSettings:
        devices: list[str] = []
        limits: list[RateLimit] = []
        for at, group in enumerate(self._config.instance_group):
            own = self._devices(group, f"instance_group[{at}]")
            limit = self._rate_limit(group, f"instance_group[{at}].rate_limiter")
            devices += own
            limits += [limit] * len(own)
        if len(devices) > MAX_EXECUTORS:
            self._problems.add(
                "instance_group", f"has more than {MAX_EXECUTORS} instances", len(devices), "write fewer"
            )
        kinds = tuple(dict.fromkeys(devices))
        return replace(
            settings,
            num_executors=max(len(devices), 1),
            rate_limits=() if set(limits) <= {RateLimit()} else tuple(limits),
            devices=() if kinds in ((), ("auto",)) else kinds if len(kinds) == 1 else tuple(devices),
        )

    def _rate_limit(self, group: ModelInstanceGroup, key: str) -> RateLimit:
        found: dict[str, ResourceNeed] = {}
        for resource in group.rate_limiter.resources:
            name = resource.name
            if not name or name in found:
                problem = "is there twice" if name else "has no name"
                self._problems.add(f"{key}.resources", problem, name, "name each resource, and write it once")
            found[name] = ResourceNeed(name, resource.count, getattr(resource, "global"))
        return RateLimit(tuple(need for need in found.values() if need.count), max(group.rate_limiter.priority, 1))

    def _devices(self, group: ModelInstanceGroup, key: str) -> list[str]:
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        who = f"instance group {group.name or key} of model {self._model} has kind {kind}"
        count = group.count or 1
        if not 1 <= count <= MAX_EXECUTORS:
            self._problems.add(f"{key}.count", f"is not from 1 to {MAX_EXECUTORS}", group.count, "write such as 1")
            return []
        if group.gpus and group.kind in (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL):
            self._problems.add(
                f"{key}.gpus", f"{who} but specifies one or more GPUs", list(group.gpus), "remove one of them"
            )
        if any(not 0 <= gpu <= 999 for gpu in group.gpus):
            self._problems.add(f"{key}.gpus", "names what is no GPU", list(group.gpus), "write such as [ 0 ]")
            return []
        if group.kind == ModelInstanceGroup.KIND_CPU:
            return ["cpu"] * count
        if group.kind == ModelInstanceGroup.KIND_GPU or group.gpus:
            # ``count`` instances on each, the GPUs in turn, so that the first executors are on different ones.
            return [f"gpu:{gpu}" for _ in range(count) for gpu in group.gpus or (0,)]
        return ["auto"] * count
