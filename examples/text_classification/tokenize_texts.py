"""Texts to the tokens that the network takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

#: Tokens of a text; what follows them is cut off.
LENGTH = 32


class TritonPythonModel:
    """``TEXT``, BYTES [n, 1], to ``IDS`` and ``MASK``, INT64 [n, LENGTH]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the tokenizer, which is a file beside this one."""
        file = Path(args["model_repository"], args["model_version"], "tokenizer.json")
        self.tokenizer = Tokenizer.from_file(str(file))
        self.tokenizer.enable_truncation(LENGTH)
        self.tokenizer.enable_padding(length=LENGTH)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Tokenize the texts of all requests at once, and give each request its own."""
        texts = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().ravel() for request in requests]
        encoded = self.tokenizer.encode_batch([text.decode(errors="replace") for own in texts for text in own])
        ids = np.array([one.ids for one in encoded], np.int64)
        mask = np.array([one.attention_mask for one in encoded], np.int64)
        responses = []
        at = 0
        for own in texts:
            rows = slice(at, at + len(own))
            tensors = [pb_utils.Tensor("IDS", ids[rows]), pb_utils.Tensor("MASK", mask[rows])]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
            at += len(own)
        return responses
