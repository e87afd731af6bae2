"""The YAML file of Triton's Model Analyzer (``profile``), as what ``toutates tune`` is asked.

The keys are those that its documentation lists (docs/config.md of triton-inference-server/model_analyzer). What says
how *it* works (where it finds perf_analyzer, how it starts Triton, which tables it writes) has no meaning here, and is
named in a warning. What would change the result and cannot be had is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toutates.models.config.yaml_reader import NULL, read_mapping
from toutates.system.errors import ConfigurationError
from toutates.tune.constraints import LATENCY, THROUGHPUT, Constraint, read_constraint

__all__ = ["Asked", "OneAsked", "read_analyzer_file"]

#: Of Model Analyzer's own work: its processes, files, tables and plots.
_IDLE: Final = frozenset(
    {
        "always_report_gpu_metrics",
        "checkpoint_directory",
        "client_max_retries",
        "client_protocol",
        "collect_cpu_metrics",
        "config_file",
        "dcgm_disable",
        "duration_seconds",
        "early_exit_enable",
        "export_path",
        "filename_model_gpu",
        "filename_model_inference",
        "filename_server_only",
        "gpu_output_fields",
        "inference_output_fields",
        "max_retries",
        "min_percentage_of_search_space",
        "max_percentage_of_search_space",
        "monitoring_interval",
        "num_configs_per_model",
        "num_top_model_configs",
        "optuna_early_exit_threshold",
        "optuna_max_trials",
        "optuna_min_trials",
        "override_output_model_repository",
        "perf_analyzer_cpu_util",
        "perf_analyzer_max_auto_adjusts",
        "perf_analyzer_path",
        "perf_analyzer_timeout",
        "perf_output",
        "perf_output_path",
        "plots",
        "reload_model_disable",
        "run_config_search_max_binary_search_steps",
        "run_config_search_max_concurrency",
        "run_config_search_min_concurrency",
        "run_config_search_mode",
        "server_output_fields",
        "skip_detailed_reports",
        "skip_summary_reports",
        "summarize",
        "triton_docker_image",
        "triton_docker_labels",
        "triton_docker_mounts",
        "triton_docker_shm_size",
        "triton_grpc_endpoint",
        "triton_http_endpoint",
        "triton_install_path",
        "triton_launch_mode",
        "triton_metrics_url",
        "triton_output_path",
        "triton_server_environment",
        "triton_server_flags",
        "triton_server_path",
        "use_concurrency_formula",
        "gpus",
        "cpu_only",
    }
)
#: What is asked another way, or not at all.
_REFUSED: Final = {
    "analysis_models": "is of the subcommand 'analyze', which Model Analyzer has given up; write profile_models",
    "report_model_configs": "is of the subcommand 'report'; leave it out",
    "bls_composing_models": "is not known here; name the folders of the models that are to be tuned together",
    "cpu_only_composing_models": "is not known here; name the folders of the models that are to be tuned together",
    "genai_perf_flags": "is for large language models, which are not tuned",
    "request_rate": "is an open loop, and tuning is by a closed one; write concurrency",
    "request_rate_search_enable": "is an open loop, and tuning is by a closed one; write concurrency",
    "run_config_search_max_request_rate": "is an open loop, and tuning is by a closed one; write concurrency",
    "run_config_search_min_request_rate": "is an open loop, and tuning is by a closed one; write concurrency",
}
_FIGURES: Final = {"perf_latency_p99": "p99", "perf_latency_p95": "p95", "perf_latency_p90": "p90"}
_OBJECTIVES: Final = {"perf_throughput": THROUGHPUT, "perf_latency_p99": LATENCY, "perf_latency": LATENCY}
#: Flags of perf_analyzer, by those of ``toutates tune``.
_FLAGS: Final = {"shape": "shape", "input-data": "data", "string-length": "string_length", "b": "batch"}
_DEFAULT_CONCURRENCY: Final = 64


@dataclass(slots=True)
class OneAsked:
    """What is asked of one model.

    Attributes:
        constraints: texts such as ``p99<=5ms``.
        objective: one of OBJECTIVES; "" for the file's.
        concurrency, batch: of the load; 0 for the file's.
        weight: of its requests, where models are tuned together.
        ranges: values that are tried, by keys of config.yaml.
        flags: of the command, from perf_analyzer's.
    """

    constraints: list[Constraint] = field(default_factory=list)
    objective: str = ""
    concurrency: int = 0
    batch: int = 0
    weight: float = 1.0
    ranges: dict[str, list[int]] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Asked:
    """What a file asks.

    Attributes:
        repository: the folder of the models.
        models: by their names.
        together: whether they share the machine; else they are tuned one after another.
        output: folder of the results, or "".
        warnings: keys that have no meaning here, and what else is not as it was written, a sentence each.
    """

    repository: Path
    models: dict[str, OneAsked]
    together: bool
    output: str
    warnings: list[str]


def read_analyzer_file(path: Path) -> Asked:
    """Read a file.

    Raises:
        ConfigurationError: it is not there or cannot be read; a key is unknown, refused, or has a value that it cannot.
    """
    values = read_mapping(path)
    if values is None:
        raise ConfigurationError("is not there", key="--config-file", value=str(path), remedy="correct the path")
    return _Reader(path, values).read()


class _Reader:
    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path, self._values = path, values
        self._idle: list[str] = []
        self._warnings: list[str] = []

    def read(self) -> Asked:
        values = self._values
        repository = values.get("model_repository")
        if not isinstance(repository, str):
            raise self._refused("model_repository", "is missing", "name the folder of the models")
        common = OneAsked(objective=THROUGHPUT, concurrency=_DEFAULT_CONCURRENCY, batch=1)
        self._take_common(common)
        models = {name: self._model(name, own, common) for name, own in self._models().items()}
        together = values.get("run_config_profile_models_concurrently_enable") is True and len(models) > 1
        if not together and any(one.weight != 1 for one in models.values()):
            self._warnings.append("weighting: models are tuned one after another, where it has no meaning")
        if self._idle:
            self._warnings.append(f"no meaning here: {', '.join(dict.fromkeys(self._idle))}")
        return Asked(
            Path(repository),
            models,
            together,
            str(values.get("output_model_repository_path") or ""),
            [f"{self._path}: {text}" for text in self._warnings],
        )

    # --- what holds for all models -----------------------------------------------------------------------------------

    def _take_common(self, common: OneAsked) -> None:
        own = {"model_repository", "profile_models", "output_model_repository_path"}
        own.add("run_config_profile_models_concurrently_enable")
        searched: dict[str, dict[str, int]] = {"batch_size": {}, "num_executors": {}}
        for key, value in _constraints_first(self._values):
            if key in own or self._is_of_any(key, value, common, key):
                continue
            if key in _REFUSED:
                raise self._refused(key, _REFUSED[key], "")
            if key == "run_config_search_disable":
                common.flags["no_search"] = value is True
            elif key in _SEARCHED:
                name, bound = _SEARCHED[key]
                searched[name][bound] = self._integer(key, value)
            elif key in _IDLE:
                self._idle.append(key)
            else:
                raise self._refused(key, "is no key of Model Analyzer's profile", "remove it")
        for name, bounds in searched.items():
            if bounds:
                least, most = bounds.get("min", 1), bounds.get("max", _MOST[name])
                if least > most:
                    raise self._refused(f"run_config_search_max_{name}", "is below its minimum", "")
                common.ranges[name] = _powers(least, most)

    def _is_of_any(self, key: str, value: Any, asked: OneAsked, where: str) -> bool:
        """Whether a key may stand at the top and at a model; then it is taken."""
        match key:
            case "objectives":
                asked.objective = self._objective(where, value)
            case "constraints":
                asked.constraints = [*self._constraints(where, value)]
            case "latency_budget":
                asked.constraints.append(self._constraint(f"p99<={self._number(where, value)}ms"))
            case "min_throughput":
                asked.flags["least_inferences"] = self._number(where, value)
            case "concurrency":
                asked.concurrency = self._largest(where, value)
            case "batch_sizes":
                asked.batch = self._largest(where, value)
            case "weighting":
                asked.weight = float(self._number(where, value))
            case "perf_analyzer_flags":
                self._take_flags(where, value, asked)
            case "model_type":
                if value != "generic":
                    raise self._refused(where, "is not tuned", "leave it out for a model, or for an ensemble", value)
            case _:
                return False
        return True

    # --- models ------------------------------------------------------------------------------------------------------

    def _models(self) -> dict[str, Any]:
        value = self._values.get("profile_models")
        if isinstance(value, str):
            value = [one.strip() for one in value.split(",")]
        found: dict[str, Any] = {}
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                found |= one
            elif isinstance(one, str) and one:
                found[one] = {}
            else:
                raise self._refused("profile_models", "names no models", "write a list of names", value)
        if not found:
            raise self._refused("profile_models", "names no models", "write a list of names", value)
        return found

    def _model(self, name: str, own: Any, common: OneAsked) -> OneAsked:
        asked = OneAsked(
            list(common.constraints),
            common.objective,
            common.concurrency,
            common.batch,
            common.weight,
            dict(common.ranges),
            dict(common.flags),
        )
        if own is NULL:
            own = {}
        if not isinstance(own, dict):
            raise self._refused(f"profile_models.{name}", "is no mapping", "write keys such as parameters", own)
        for key, value in _constraints_first(own):
            where = f"profile_models.{name}.{key}"
            if self._is_of_any(key, value, asked, where):
                continue
            if key == "parameters" and isinstance(value, dict):
                for inner, told in value.items():
                    if inner not in ("concurrency", "batch_sizes"):
                        problem = _REFUSED.get(inner, "is no parameter")
                        raise self._refused(f"{where}.{inner}", problem, "write concurrency or batch_sizes")
                    self._is_of_any(inner, told, asked, f"{where}.{inner}")
            elif key == "model_config_parameters" and isinstance(value, dict):
                self._take_ranges(where, value, asked)
            elif key in _IDLE:
                self._idle.append(where)
            else:
                raise self._refused(where, "is no key of a model", "remove it")
        if (least := asked.flags.pop("least_inferences", 0)) or self._inferences(asked):
            asked.constraints = [self._of_requests(one, asked.batch) for one in asked.constraints]
            if least:
                asked.constraints.append(self._constraint(f"rate>={_plain(float(least) / asked.batch)}"))
        return asked

    @staticmethod
    def _inferences(asked: OneAsked) -> bool:
        return asked.batch > 1 and any(one.at_least for one in asked.constraints)

    def _of_requests(self, one: Constraint, batch: int) -> Constraint:
        """Model Analyzer counts inferences, which are rows; here requests are counted."""
        return self._constraint(f"rate>={_plain(one.bound / batch)}") if one.at_least and batch > 1 else one

    # --- values ------------------------------------------------------------------------------------------------------

    def _objective(self, where: str, value: Any) -> str:
        if isinstance(value, str):
            value = [value]
        weights = dict.fromkeys(value, 1) if isinstance(value, list) else value
        if not isinstance(weights, dict) or not weights:
            raise self._refused(where, "is no list of objectives", "write [perf_throughput]", value)
        for name in weights:
            if name not in _OBJECTIVES:
                raise self._refused(f"{where}.{name}", "is not measured", f"write one of {', '.join(_OBJECTIVES)}")
        first = max(weights, key=lambda name: self._number(f"{where}.{name}", weights[name]))
        if len({_OBJECTIVES[name] for name in weights}) > 1:
            self._warnings.append(
                f"{where}: there is one objective at a time, {first}; bound the others by constraints"
            )
        return _OBJECTIVES[first]

    def _constraints(self, where: str, value: Any) -> Sequence[Constraint]:
        if not isinstance(value, dict):
            raise self._refused(where, "is no mapping", "write perf_latency_p99: {max: 5}", value)
        found = []
        for name, bounds in value.items():
            own = f"{where}.{name}"
            if not isinstance(bounds, dict) or len(bounds) != 1:
                raise self._refused(own, "has not one bound", "write such as {max: 5}", bounds)
            ((bound, number),) = bounds.items()
            shown = self._number(f"{own}.{bound}", number)
            if name == "perf_throughput" and bound == "min":
                found.append(self._constraint(f"rate>={shown}"))
            elif name in (*_FIGURES, "perf_latency") and bound == "max":
                found.append(self._constraint(f"{_FIGURES.get(name, 'p99')}<={shown}ms"))
            elif name == "cpu_used_ram" and bound == "max":
                found.append(self._constraint(f"memory<={shown}MB"))
            else:
                raise self._refused(
                    f"{own}.{bound}",
                    "cannot be held, because nobody measures it here",
                    "write perf_throughput: {min: N}, perf_latency_p99: {max: N} or cpu_used_ram: {max: N}",
                )
        return found

    def _constraint(self, text: str) -> Constraint:
        try:
            return read_constraint(text)
        except ValueError as error:
            raise self._refused("constraints", str(error), "", text) from None

    def _take_ranges(self, where: str, value: Mapping[str, Any], asked: OneAsked) -> None:
        """The keys of a ModelConfig that are swept through."""
        for key, told in value.items():
            own = f"{where}.{key}"
            if key == "max_batch_size":
                asked.ranges["batch_size"] = self._integers(own, told)
            elif key == "instance_group":
                asked.ranges["num_executors"] = sorted(set(self._counts(own, told)))
            elif key == "dynamic_batching":
                for inner, delays in (told if isinstance(told, dict) else {}).items():
                    if inner != "max_queue_delay_microseconds":
                        self._idle.append(f"{own}.{inner}")
                    else:
                        asked.ranges["max_queue_delay_us"] = self._integers(f"{own}.{inner}", delays, 0)
            else:
                self._idle.append(own)

    def _counts(self, where: str, value: Any) -> list[int]:
        if isinstance(value, list):
            return [count for one in value for count in self._counts(where, one)]
        if not isinstance(value, dict):
            raise self._refused(where, "is no list of groups", "write [{kind: KIND_CPU, count: [1, 2]}]", value)
        if value.get("kind") not in (None, "KIND_CPU", "KIND_AUTO"):
            self._idle.append(f"{where}.kind")
        return self._integers(f"{where}.count", value.get("count", 1))

    def _take_flags(self, where: str, value: Any, asked: OneAsked) -> None:
        if not isinstance(value, dict):
            raise self._refused(where, "is no mapping", "write such as {shape: INPUT:64}", value)
        for key, told in value.items():
            name = _FLAGS.get(key.replace("_", "-"))
            if key.replace("_", "-") == "percentile":
                self._warnings.append(f"{where}.{key}: latency is p99 where no constraint says otherwise")
            elif name is None:
                self._idle.append(f"{where}.{key}")
            elif name in ("batch", "string_length"):
                asked.flags[name] = self._integer(f"{where}.{key}", told)
            else:
                texts = [str(one) for one in told] if isinstance(told, list) else [str(told)]
                asked.flags[name] = texts if name == "shape" else texts[-1]

    def _largest(self, where: str, value: Any) -> int:
        numbers = self._integers(where, value)
        if len(numbers) > 1:
            self._warnings.append(f"{where}: a tuning is for one load; {max(numbers)} of {len(numbers)} is taken")
        return max(numbers)

    def _integers(self, where: str, value: Any, least: int = 1) -> list[int]:
        """A number, a list, a text with commas, or a range."""
        if isinstance(value, dict):
            if not {"start", "stop"} <= value.keys() <= {"start", "stop", "step"}:
                raise self._refused(where, "is no range", "write {start: 2, stop: 6, step: 2}", value)
            start, stop, step = (
                self._integer(f"{where}.{name}", value.get(name, 1), 1 if name == "step" else least)
                for name in ("start", "stop", "step")
            )
            found = list(range(start, min(stop, start + 10_000 * step) + 1, step))
        elif isinstance(value, str):
            try:
                found = [int(one) for one in value.split(",")]
            except ValueError:
                raise self._refused(where, "is no list of numbers", "write such as 1,2,4", value) from None
        else:
            found = [self._integer(where, one, least) for one in (value if isinstance(value, list) else [value])]
        if not found or min(found) < least:
            raise self._refused(where, f"has no number from {least} on", "write such as [1, 2, 4]", value)
        return sorted(set(found))

    def _integer(self, where: str, value: Any, least: int = 1) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._refused(where, f"is no whole number from {least} on", "write such as 4", value)
        return value

    def _number(self, where: str, value: Any) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self._refused(where, "is no number above 0", "write such as 5", value)
        return value

    def _refused(self, key: str, problem: str, remedy: str, value: object = None) -> ConfigurationError:
        return ConfigurationError(problem, source=self._path, key=key, value=value, remedy=remedy)


_SEARCHED: Final = {
    "run_config_search_min_model_batch_size": ("batch_size", "min"),
    "run_config_search_max_model_batch_size": ("batch_size", "max"),
    "run_config_search_max_preferred_batch_size": ("batch_size", "max"),
    "run_config_search_min_instance_count": ("num_executors", "min"),
    "run_config_search_max_instance_count": ("num_executors", "max"),
}
#: Model Analyzer's own bounds.
_MOST: Final = {"batch_size": 128, "num_executors": 5}


def _constraints_first(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The constraints of a model take the place of the file's, and shorthands such as latency_budget add to them."""
    return sorted(values.items(), key=lambda one: one[0] != "constraints")


def _powers(least: int, most: int) -> list[int]:
    """Powers of two within bounds, and the bounds."""
    return sorted({least, most, *(1 << power for power in range(most.bit_length()) if least <= 1 << power <= most)})


def _plain(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
