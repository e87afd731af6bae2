"""Modules of PyTorch that keep something from run to run. Each but the last two gives the sum of all x, FP32 [1, 3]."""

# TorchScript reads the methods, and takes no comments that speak of types.
# mypy: disable-error-code="misc, no-any-return"

from __future__ import annotations

import torch

__all__ = ["AddsToBuffer", "AddsToParameter", "Grows", "Late", "SetsAttributeOfPart", "Spread"]


class AddsToBuffer(torch.nn.Module):
    """Writes to a buffer, and gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total


class _Part(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.zeros(0, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = torch.cat([self.rows, x])
        return self.rows.sum(0, keepdim=True)


class SetsAttributeOfPart(torch.nn.Module):
    """Has a part that sets an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.part = _Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


class Grows(torch.nn.Module):
    """Has a list that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.jit.Attribute([], list[torch.Tensor])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x * 1)
        return torch.stack(self.seen).sum(0)


class AddsToParameter(torch.nn.Module):
    """Writes to a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.w.add_(x)
        return self.w * 1


class Late(torch.nn.Module):
    """Gives x, and writes to a buffer where x is large."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 100):
            self.total.add_(x)
        return self.total + x


class Spread(torch.nn.Module):
    """Gives a scalar x three times."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dim() == 0
        return x.expand(1, 3) * 1
