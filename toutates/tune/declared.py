"""The configuration of a model whose tensors its config.pbtxt declares: Python models, and those of other frameworks.

A config.yaml cannot declare tensors. So what is tuned of such a model is changed in its config.pbtxt, and all else
stays as it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import text_format

from toutates.protocol.model_config_pb2 import ModelConfig

__all__ = ["Declared"]

_CAPACITY: Final = "toutates.capacity"


class Declared:
    """A config.pbtxt, and what may be changed of it.

    Args:
        text: of the file, complete, as ``toutates config`` prints it.
    """

    def __init__(self, text: str) -> None:
        self._config = ModelConfig()
        text_format.Parse(text, self._config)

    @property
    def keys(self) -> frozenset[str]:
        """Those that may be changed, by the names that they have in a config.yaml; and "parameters"."""
        config = self._config
        keys = {"parameters"}
        if len(config.instance_group) == 1:  # how many of several groups belong together is not known
            keys.add("num_executors")
        # Without a scheduler a Python model gets its requests one at a time, and may count on it.
        if config.max_batch_size and (config.backend != "python" or config.WhichOneof("scheduling_choice")):
            keys.add("batch_size")
            if not config.HasField("sequence_batching"):  # which has delays of its own
                keys.add("max_queue_delay_us")
        return frozenset(keys)

    def base(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The keys as they are.

        Args:
            settings: all keys, as ``toutates config`` prints them as a config.yaml.
        """
        groups = self._config.instance_group
        # Of a group on two GPUs each has so many instances.
        return {**settings, "num_executors": groups[0].count} if len(groups) == 1 else dict(settings)

    def text(self, config: Mapping[str, Any]) -> str:
        """The file that says the keys of a configuration.

        Args:
            config: as ``base`` has it, with changes.
        """
        made = ModelConfig()
        made.CopyFrom(self._config)
        keys = self.keys
        if "num_executors" in keys:
            made.instance_group[0].count = config["num_executors"]
        if "batch_size" in keys and config["batch_size"] != made.max_batch_size:
            rows, before = config["batch_size"], made.max_batch_size
            made.max_batch_size = rows
            made.parameters[_CAPACITY].string_value = str(config["capacity"])
            for batching in (made.dynamic_batching, made.sequence_batching.oldest):
                sizes = [size for size in batching.preferred_batch_size if size <= rows and size != before]
                if batching.preferred_batch_size:
                    batching.ClearField("preferred_batch_size")
                    batching.preferred_batch_size.extend(sizes)
        if "max_queue_delay_us" in keys and config["max_queue_delay_us"]:
            made.dynamic_batching.max_queue_delay_microseconds = config["max_queue_delay_us"]
        elif made.dynamic_batching.max_queue_delay_microseconds and "max_queue_delay_us" in keys:
            made.dynamic_batching.max_queue_delay_microseconds = 0
        for name, value in (config.get("parameters") or {}).items():
            made.parameters[name].string_value = str(value)
        return str(text_format.MessageToString(made, as_utf8=True))
