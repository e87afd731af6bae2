"""Which settings of batch buffers fit which execution providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from toutates.backends.onnx.preparing import check_allocator
from toutates.models.config.settings import ModelSettings
from toutates.system.errors import ConfigurationError


@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", "TensorrtExecutionProvider"])
def test_page_locked_buffers_are_accepted_with_a_cuda_provider(provider: str) -> None:
    providers = [provider, "CPUExecutionProvider"]
    check_allocator(ModelSettings(allocator="cuda_pinned"), providers, Path("config.yaml"))


def test_page_locked_buffers_are_refused_without_a_cuda_provider() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_allocator(ModelSettings(allocator="cuda_pinned"), ["CPUExecutionProvider"], Path("m/1/config.yaml"))
    said = str(caught.value)
    assert said.startswith("m/1/config.yaml: allocator: ")
    assert "in use: CPUExecutionProvider" in said
    assert "`allocator: cpu`" in said
    assert "`--execution-providers cuda`" in said


def test_ordinary_buffers_are_accepted_with_any_provider() -> None:
    check_allocator(ModelSettings(allocator="cpu"), ["CPUExecutionProvider"], Path("config.yaml"))
