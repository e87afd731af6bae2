"""Build the model repository of this example: an ensemble that tells circles, squares and triangles apart.

    python examples/image_classification/make_repository.py DIR

The network is a layer of random filters, as good as trained ones for shapes, and a linear layer that is fitted here by
least squares, to pictures that are drawn here. All of it takes a second or two. It needs numpy, onnx, onnxruntime and
Pillow.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw

HERE = Path(__file__).parent
LABELS = ("circle", "square", "triangle")
SIZE = 32
FILTERS = 48
PICTURES = 900

Array = np.ndarray[Any, np.dtype[np.float32]]


def draw(rng: np.random.Generator, label: str, size: int = 96) -> Image.Image:
    """A picture of a shape: its place, size and colours are drawn by chance, and there is noise."""
    low = tuple(int(value) for value in rng.integers(0, 100, 3))
    high = tuple(int(value) for value in rng.integers(150, 256, 3))
    picture = Image.new("RGB", (size, size), low)
    radius = int(rng.uniform(0.25, 0.4) * size)
    x, y = (int(value) for value in rng.integers(radius, size - radius, 2))
    pen = ImageDraw.Draw(picture)
    if label == "circle":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), high)
    elif label == "square":
        side = round(0.85 * radius)
        pen.rectangle((x - side, y - side, x + side, y + side), high)
    else:
        pen.polygon([(x, y - radius), (x + radius, y + radius), (x - radius, y + radius)], high)
    noise = rng.normal(0, 8, (size, size, 3))
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))


def _pixels(picture: Image.Image) -> Array:
    small = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.asarray(small, np.float32).transpose(2, 0, 1) / np.float32(255)


def _network(filters: Array, weights: Array | None = None) -> onnx.ModelProto:
    """PIXELS to SCORES; to the features before the last layer, if there are no weights for that."""
    grey = np.full((1, 3, 1, 1), 1 / 3, np.float32)
    constants = {"grey": grey, "filters": filters}
    nodes = [
        helper.make_node("Conv", ["PIXELS", "grey"], ["shades"]),
        # Bright or dark does not matter: the mean goes, and the rest is as wide for every picture.
        helper.make_node("MeanVarianceNormalization", ["shades"], ["normal"], axes=[1, 2, 3]),
        helper.make_node("Conv", ["normal", "filters"], ["edges"], pads=[2, 2, 2, 2]),
        helper.make_node("Relu", ["edges"], ["found"]),
        helper.make_node("AveragePool", ["found"], ["pooled"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Flatten", ["pooled"], ["places"]),
        helper.make_node("GlobalAveragePool", ["found"], ["whole"]),
        helper.make_node("Flatten", ["whole"], ["sums"]),
        helper.make_node("Mul", ["sums", "sums"], ["squares"]),
        helper.make_node("Concat", ["places", "sums", "squares"], ["features"], axis=1),
    ]
    output, width = "features", FILTERS * 16 + 2 * FILTERS
    if weights is not None:
        constants |= {"weights": weights[:-1], "bias": weights[-1]}
        nodes += [
            helper.make_node("Gemm", ["features", "weights", "bias"], ["values"]),
            helper.make_node("Softmax", ["values"], ["SCORES"], axis=1),
        ]
        output, width = "SCORES", len(LABELS)
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("PIXELS", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def train(rng: np.random.Generator) -> onnx.ModelProto:
    """A network that was fitted to pictures."""
    filters = rng.normal(0, 1, (FILTERS, 1, 5, 5)).astype(np.float32)
    filters -= filters.mean(axis=(2, 3), keepdims=True)
    labels = rng.integers(0, len(LABELS), PICTURES)
    pixels = np.stack([_pixels(draw(rng, LABELS[label])) for label in labels])
    session = onnxruntime.InferenceSession(_network(filters).SerializeToString(), providers=["CPUExecutionProvider"])
    [features] = session.run(None, {"PIXELS": pixels})
    features = np.hstack([features, np.ones((PICTURES, 1), np.float32)]).astype(np.float64)
    wanted = 10 * np.eye(len(LABELS))[labels]
    damping = 5.0 * np.eye(features.shape[1])
    weights = np.linalg.solve(features.T @ features + damping, features.T @ wanted)
    return _network(filters, weights.astype(np.float32))


CONFIGS = {
    "decode": """
backend: "python"
max_batch_size: 16
input [{ name: "IMAGE" data_type: TYPE_STRING dims: [1] }]
output [{ name: "PIXELS" data_type: TYPE_FP32 dims: [3, 32, 32] }]
""",
    "network": """
backend: "onnxruntime"
max_batch_size: 16
""",
    "label": f"""
backend: "python"
max_batch_size: 16
input [{{ name: "SCORES" data_type: TYPE_FP32 dims: [{len(LABELS)}] }}]
output [
  {{ name: "LABEL" data_type: TYPE_STRING dims: [1] }},
  {{ name: "SCORE" data_type: TYPE_FP32 dims: [1] }}
]
parameters {{ key: "labels" value {{ string_value: "{",".join(LABELS)}" }} }}
""",
    "classify": """
platform: "ensemble"
max_batch_size: 16
input [{ name: "IMAGE" data_type: TYPE_STRING dims: [1] }]
output [
  { name: "LABEL" data_type: TYPE_STRING dims: [1] },
  { name: "SCORE" data_type: TYPE_FP32 dims: [1] }
]
ensemble_scheduling {
  step [
    {
      model_name: "decode" model_version: -1
      input_map { key: "IMAGE" value: "IMAGE" }
      output_map { key: "PIXELS" value: "pixels" }
    },
    {
      model_name: "network" model_version: -1
      input_map { key: "PIXELS" value: "pixels" }
      output_map { key: "SCORES" value: "scores" }
    },
    {
      model_name: "label" model_version: -1
      input_map { key: "SCORES" value: "scores" }
      output_map { key: "LABEL" value: "LABEL" }
      output_map { key: "SCORE" value: "SCORE" }
    }
  ]
}
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the model repository of the image classification example.")
    parser.add_argument("directory", type=Path, metavar="DIR")
    directory: Path = parser.parse_args().directory
    for name, config in CONFIGS.items():
        (directory / name / "1").mkdir(parents=True, exist_ok=True)
        (directory / name / "config.pbtxt").write_text(f'name: "{name}"{config}')
    for name in ("decode", "label"):
        shutil.copy(HERE / f"{name}.py", directory / name / "1" / "model.py")
    onnx.save(train(np.random.default_rng(7)), directory / "network" / "1" / "model.onnx")
    print(f"models in {directory}: {', '.join(CONFIGS)}")


if __name__ == "__main__":
    main()
