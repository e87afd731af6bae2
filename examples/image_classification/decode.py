"""Images of any size, as JPEG or PNG files, to the pixels that the network takes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, UnidentifiedImageError

#: Width and height of what the network sees.
SIZE = 32
#: A file may say that it has any number of pixels, and each takes memory when it is decoded.
MAX_PIXELS = 50_000_000


class TritonPythonModel:
    """``IMAGE``, BYTES [n, 1], to ``PIXELS``, FP32 [n, 3, SIZE, SIZE] from 0 to 1."""

    def initialize(self, args: dict[str, str]) -> None:
        """Bound what an image may take."""
        Image.MAX_IMAGE_PIXELS = MAX_PIXELS

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode the images of each request. One that is no image fails alone."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        files = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().ravel()
        try:
            pixels = np.stack([_pixels(file) for file in files])
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            reason = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
            problem = pb_utils.TritonError(f"IMAGE is not an image{reason}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=problem)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("PIXELS", pixels)])


def _pixels(file: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    with Image.open(io.BytesIO(file)) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"it has more than {MAX_PIXELS} pixels")
        image.draft("RGB", (SIZE, SIZE))  # a JPEG file is decoded at an eighth of its size, if that is enough
        small = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.asarray(small, np.float32).transpose(2, 0, 1) / np.float32(255)
