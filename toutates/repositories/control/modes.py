"""When what is served changes; see ``model_control``. Its own module, because flags are read before all is imported."""

from __future__ import annotations

from typing import Literal

__all__ = ["CONTROL_MODES", "ControlMode"]

ControlMode = Literal["none", "poll", "explicit", "on-demand"]

CONTROL_MODES: tuple[ControlMode, ...] = ("none", "poll", "explicit", "on-demand")
