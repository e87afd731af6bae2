"""Build the model repository of this example: silero-vad, with its state kept by the server.

    python examples/voice_activity/make_repository.py DIR

It does nothing where DIR has the model already. The graph of the package has its batch in the second dimension of its
state, and wants the last samples of the chunk before in front of each chunk. Here it gets a few nodes around it: the
batch comes first, so that chunks of several streams run together, and those samples are a second state. What is left
for a client to send is audio.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.voice_activity.fetch import fetch

NAME = "vad"
RATE = 16_000
#: Samples of a chunk, and those of the one before that the network sees too.
CHUNK, CONTEXT = 512, 64

CONFIG = f"""\
backend: "onnxruntime"
max_batch_size: 64
input [ {{ name: "AUDIO" data_type: TYPE_FP32 dims: [ {CHUNK} ] }} ]
output [ {{ name: "SPEECH" data_type: TYPE_FP32 dims: [ 1 ] }} ]
sequence_batching {{
  max_sequence_idle_microseconds: 10000000
  oldest {{ max_candidate_sequences: 1000 }}
  state [
    {{ input_name: "CONTEXT" output_name: "NEXT_CONTEXT" data_type: TYPE_FP32 dims: [ {CONTEXT} ]
      initial_state: {{ name: "none" data_type: TYPE_FP32 dims: [ {CONTEXT} ] zero_data: true }} }},
    {{ input_name: "STATE" output_name: "NEXT_STATE" data_type: TYPE_FP32 dims: [ 2, 128 ]
      initial_state: {{ name: "none" data_type: TYPE_FP32 dims: [ 2, 128 ] zero_data: true }} }}
  ]
}}
"""


def with_states(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph of the package, with nodes around it."""
    graph = model.graph
    before = [
        helper.make_node("Concat", ["CONTEXT", "AUDIO"], ["input"], axis=1),
        helper.make_node("Transpose", ["STATE"], ["state"], perm=[1, 0, 2]),
    ]
    after = [
        helper.make_node("Identity", ["output"], ["SPEECH"]),
        helper.make_node("Transpose", ["stateN"], ["NEXT_STATE"], perm=[1, 0, 2]),
        helper.make_node("Slice", ["AUDIO", "context_from", "context_to", "context_axis"], ["NEXT_CONTEXT"]),
    ]
    constants = {"sr": np.int64(RATE), "context_from": [CHUNK - CONTEXT], "context_to": [CHUNK], "context_axis": [1]}
    graph.initializer.extend(
        [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()]
    )
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    shapes = {"AUDIO": [CHUNK], "CONTEXT": [CONTEXT], "STATE": [2, 128]}
    results = {"SPEECH": [1], "NEXT_CONTEXT": [CONTEXT], "NEXT_STATE": [2, 128]}
    for tensors, where in ((shapes, graph.input), (results, graph.output)):
        where.extend(
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *dims]) for name, dims in tensors.items()]
        )
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch silero-vad, and give its state to the server.")
    parser.add_argument("directory", type=Path, metavar="DIR")
    folder = parser.parse_args().directory / NAME
    if folder.exists():
        return 0
    try:
        graph = fetch()
    except subprocess.CalledProcessError:
        print("the package cannot be downloaded; see what pip says above", file=sys.stderr)
        return 1
    (folder / "1").mkdir(parents=True)
    onnx.save(with_states(onnx.load(graph)), folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(CONFIG)
    return 0


if __name__ == "__main__":
    sys.exit(main())
