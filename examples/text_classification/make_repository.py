"""Build the model repository of this example: an ensemble that says what a sentence is about.

    python examples/text_classification/make_repository.py DIR

The tokenizer and the network are trained here, on the sentences below: a second. It needs numpy, onnx and tokenizers.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = Path(__file__).parent
LENGTH = 32
SENTENCES = {
    "weather": """
        rain falls all day; the sun shines over the hills; a storm comes from the sea; snow lies on the roads;
        clouds hide the moon; tomorrow will be cold and windy; fog in the valleys until noon; it is hot and dry;
        thunder and lightning in the evening; the wind turns north; ice on the lake; a warm and sunny weekend;
        showers in the afternoon; frost tonight; the temperature drops to five degrees; hail breaks the windows;
        a mild winter; the forecast says rain; the sky clears; heavy snow closes the pass; damp and grey mornings
    """,
    "sport": """
        the team wins the match; she runs the marathon in three hours; he scores two goals; the referee ends the game;
        they lose the final; the players train every morning; a record in the long jump; the coach changes the team;
        the cyclists climb the mountain stage; tennis on grass; the goalkeeper saves a penalty; our club buys a striker;
        fans fill the stadium; he swims for gold; the race begins at noon; a draw in the first league; the champion
        defends her title; the ball hits the post; basketball players jump high; the season ends in may
    """,
    "cooking": """
        stir the soup slowly; chop onions and garlic; bake the bread for an hour; add salt and pepper to the sauce;
        boil the pasta in salted water; fry the fish in butter; a recipe for apple cake; knead the dough; peel potatoes;
        roast the chicken in the oven; whisk eggs with sugar; let the stew simmer; grate cheese over the noodles;
        season the salad with oil and vinegar; melt the chocolate; slice tomatoes thinly; the rice needs more water;
        serve the dish warm; a spoon of flour; grill the vegetables; cook beans until soft
    """,
}
LABELS = tuple(SENTENCES)


def train_tokenizer(sentences: list[str]) -> Tokenizer:
    """A tokenizer of words and parts of words."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def train_network(tokenizer: Tokenizer, labelled: list[tuple[str, int]]) -> onnx.ModelProto:
    """IDS and MASK to SCORES: naive Bayes, each token's logarithm of how often it stands in sentences of a topic."""
    counts = np.full((tokenizer.get_vocab_size(), len(LABELS)), 0.3)
    for sentence, label in labelled:
        for token in tokenizer.encode(sentence).ids:
            counts[token, label] += 1
    counts[:2] = 1  # padding and unknown words say nothing
    table = np.log(counts / counts.sum(axis=0)).astype(np.float32)
    table -= table.mean(axis=1, keepdims=True)
    nodes: list[Any] = [
        helper.make_node("Gather", ["table", "IDS"], ["said"]),
        helper.make_node("Cast", ["MASK"], ["counted"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["counted", "last"], ["weights"]),
        helper.make_node("Mul", ["said", "weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "tokens"], ["sums"], keepdims=0),
        helper.make_node("Softmax", ["sums"], ["SCORES"], axis=1),
    ]
    constants = {"table": table, "last": np.array([2], np.int64), "tokens": np.array([1], np.int64)}
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", LENGTH]) for name in ("IDS", "MASK")],
        [helper.make_tensor_value_info("SCORES", TensorProto.FLOAT, ["n", len(LABELS)])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


CONFIGS = {
    "tokenize": f"""
backend: "python"
max_batch_size: 64
input [{{ name: "TEXT" data_type: TYPE_STRING dims: [1] }}]
output [
  {{ name: "IDS" data_type: TYPE_INT64 dims: [{LENGTH}] }},
  {{ name: "MASK" data_type: TYPE_INT64 dims: [{LENGTH}] }}
]
""",
    "network": """
backend: "onnxruntime"
max_batch_size: 64
""",
    "label": f"""
backend: "python"
max_batch_size: 64
input [{{ name: "SCORES" data_type: TYPE_FP32 dims: [{len(LABELS)}] }}]
output [
  {{ name: "LABEL" data_type: TYPE_STRING dims: [1] }},
  {{ name: "SCORE" data_type: TYPE_FP32 dims: [1] }}
]
parameters {{ key: "labels" value {{ string_value: "{",".join(LABELS)}" }} }}
""",
    "classify": """
platform: "ensemble"
max_batch_size: 64
input [{ name: "TEXT" data_type: TYPE_STRING dims: [1] }]
output [
  { name: "LABEL" data_type: TYPE_STRING dims: [1] },
  { name: "SCORE" data_type: TYPE_FP32 dims: [1] }
]
ensemble_scheduling {
  step [
    {
      model_name: "tokenize" model_version: -1
      input_map { key: "TEXT" value: "TEXT" }
      output_map { key: "IDS" value: "ids" }
      output_map { key: "MASK" value: "mask" }
    },
    {
      model_name: "network" model_version: -1
      input_map { key: "IDS" value: "ids" }
      input_map { key: "MASK" value: "mask" }
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
    parser = argparse.ArgumentParser(description="Build the model repository of the text classification example.")
    parser.add_argument("directory", type=Path, metavar="DIR")
    directory: Path = parser.parse_args().directory
    for name, config in CONFIGS.items():
        (directory / name / "1").mkdir(parents=True, exist_ok=True)
        (directory / name / "config.pbtxt").write_text(f'name: "{name}"{config}')
    labelled = [
        (" ".join(sentence.split()), label)
        for label, topic in enumerate(LABELS)
        for sentence in SENTENCES[topic].split(";")
    ]
    tokenizer = train_tokenizer([sentence for sentence, _ in labelled])
    tokenizer.save(str(directory / "tokenize" / "1" / "tokenizer.json"))
    onnx.save(train_network(tokenizer, labelled), directory / "network" / "1" / "model.onnx")
    shutil.copy(HERE / "tokenize_texts.py", directory / "tokenize" / "1" / "model.py")
    shutil.copy(HERE.parent / "image_classification" / "label.py", directory / "label" / "1" / "model.py")
    print(f"models in {directory}: {', '.join(CONFIGS)}")


if __name__ == "__main__":
    main()
