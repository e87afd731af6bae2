"""``ModelConfig`` of ``triton_python_backend_utils``: what ``auto_complete_config`` completes."""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["ModelConfig"]


class ModelConfig:
    """The configuration of a model, for ``auto_complete_config`` to complete.

    Args:
        config: as the endpoint of the configuration gives it.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = copy.deepcopy(config)
        for key, value in (("max_batch_size", 0), ("input", []), ("output", []), ("name", "")):
            self._config.setdefault(key, value)
        self._who = f"auto-complete-config function for model '{self._config['name']}'"

    def as_dict(self) -> dict[str, Any]:
        """The configuration as it is now."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the greatest number of rows of a request; ValueError where the configuration has more."""
        given = self._config["max_batch_size"]
        if given > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {given}, but in {self._who} specified max_batch_size "
                f"{max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Have requests batched; ValueError where the configuration names another scheduler."""
        for choice in ("sequence_batching", "ensemble_scheduling"):
            if choice in self._config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{choice}', but {self._who} tries to set "
                    "scheduling_choice as 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def add_input(self, tensor: dict[str, Any]) -> None:
        """Add an input of ``name``, ``data_type``, ``dims``, perhaps ``optional``; or compare it."""
        self._add("input", tensor, ("name", "data_type", "dims", "optional"))

    def add_output(self, tensor: dict[str, Any]) -> None:
        """Add an output of ``name``, ``data_type``, ``dims``; or compare it."""
        self._add("output", tensor, ("name", "data_type", "dims"))

    def _add(self, role: str, tensor: dict[str, Any], known: Any) -> None:
        name = tensor.get("name")
        if any(key not in known for key in tensor):
            listed = ", ".join(f"'{key}'" for key in known[:-1]) + f" and '{known[-1]}'"
            raise ValueError(f"{role} '{name}' in {self._who} contains property other than {listed}.")
        if "name" not in tensor:
            raise ValueError(f"{role} in {self._who} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{role} '{name}' in {self._who} is missing '{key}' property.")
        for own in self._config[role]:
            if own["name"] == name:
                self._complete(role, own, tensor)
                return
        self._config[role].append({key: list(value) if key == "dims" else value for key, value in tensor.items()})

    def _complete(self, role: str, own: dict[str, Any], tensor: dict[str, Any]) -> None:
        model, name = self._config["name"], tensor["name"]
        if own.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
            own["data_type"] = tensor["data_type"]
        elif own["data_type"] != tensor["data_type"]:
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {own['data_type']} for {role} "
                f"'{name}', model provides {tensor['data_type']}"
            )
        if not own.get("dims"):
            own["dims"] = list(tensor["dims"])
        elif list(map(int, own["dims"])) != list(tensor["dims"]):
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects dims {list(tensor['dims'])} but the model "
                f"configuration specifies dims {list(map(int, own['dims']))}"
            )
        if "optional" in own and "optional" in tensor and own["optional"] != tensor["optional"]:
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects optional {tensor['optional']} but the model "
                f"configuration specifies optional {own['optional']}"
            )
        if tensor.get("optional"):
            own["optional"] = True

    def set_model_transaction_policy(self, policy: dict[str, Any]) -> None:
        """Set ``decoupled``; ValueError where the configuration says otherwise."""
        if any(key != "decoupled" for key in policy):
            raise ValueError(f"model transaction property in {self._who} contains property other than 'decoupled'.")
        given: bool | None = self._config.get("model_transaction_policy", {}).get("decoupled")
        if given is not None and "decoupled" in policy and given != policy["decoupled"]:
            raise ValueError(f"trying to change decoupled property in {self._who}, which is already set to '{given}'.")
        self._config["model_transaction_policy"] = dict(policy)
