"""The options of each executor's session: the server's, as changed by the model's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from toutates.backends.onnx.opening import SessionOptions
from toutates.backends.onnx.provider_names import CPU, ON_CPU, PROVIDERS, Provider
from toutates.models.config.settings import ACCELERATORS, ModelSettings
from toutates.system.errors import ConfigurationError

__all__ = ["executor_session_options", "without_effect"]


def executor_session_options(
    server: SessionOptions, settings: ModelSettings, executor: int, *, model: str, source: Path
) -> SessionOptions:
    """The options of one executor's session.

    Args:
        server: the server's options.
        settings: of the version.
        executor: its number, from 0.
        model, source: name of the model, and the file to name in errors.

    Raises:
        ConfigurationError: the executor is to run on a GPU, and the server has none.
    """
    own = settings.session
    entries = server.config_entries
    if own.device_allocator_for_initializers:
        entries = (*entries, ("session.use_device_allocator_for_initializers", "1"))
    return replace(
        server,
        providers=_providers(server.providers, settings.device(executor), settings.accelerators, model, source),
        intra_threads=own.intra_threads or server.intra_threads,
        inter_threads=own.inter_threads or server.inter_threads,
        parallel=None if own.execution_mode is None else own.execution_mode == "parallel",
        graph_level=own.graph_level,
        memory_arena=own.memory_arena,
        # A pattern is kept for every shape that has run.
        memory_pattern=own.memory_pattern and settings.padding is None and settings.ragged is None,
        config_entries=entries,
    )


def without_effect(settings: ModelSettings, executors: Sequence[SessionOptions]) -> str:
    """A sentence about accelerators of the settings that some executors do not use; "" if there are none.

    Args:
        settings: of the version.
        executors: the options of each one's session.
    """
    on_cpu = sum(all(name == CPU for name, _ in options.providers) for options in executors)
    if not settings.accelerators or not on_cpu:
        return ""
    names = ", ".join(settings.accelerators)
    which = "" if on_cpu == len(executors) else f" by {on_cpu} of {len(executors)} instances"
    return (
        f"GPU Execution Accelerator will be ignored for model instance on CPU: {names}{which}; where there is a GPU, "
        "write KIND_GPU (config.yaml: gpu:0 in devices), else remove it"
    )


def _providers(
    server: tuple[Provider, ...],
    device: str,
    accelerators: Mapping[str, Mapping[str, str]],
    model: str,
    source: Path,
) -> tuple[Provider, ...]:
    gpu = {name: options for name, options in server if name != CPU}
    if device == "cpu" or (device == "auto" and not gpu):
        return tuple((name, options) for name, options in server if name == CPU)
    if not gpu:
        raise ConfigurationError(
            f"instance group of model {model} has kind KIND_GPU but no GPUs are available to the server",
            source=source,
            key="devices",
            value=device,
            remedy="write KIND_AUTO (auto) or KIND_CPU (cpu), or start the server with --execution-providers cuda",
        )
    for name in ACCELERATORS:
        if name in accelerators:
            provider = PROVIDERS[name]
            gpu[provider] = {"device_id": "0", **gpu.get(provider, {}), **accelerators[name]}
    if device != "auto":
        gpu = {name: {**options, "device_id": device.removeprefix("gpu:")} for name, options in gpu.items()}
    # Operators that TensorRT cannot run go to CUDA, and those that CUDA cannot run go to the CPU.
    ordered = [provider for name in ACCELERATORS if (provider := PROVIDERS[name]) in gpu]
    return (*((name, gpu[name]) for name in ordered), ON_CPU)
