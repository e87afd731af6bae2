"""Folders of sentence-transformers become models of a repository, or are refused with what to do."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.repositories.sentence_transformers.made_up import BERT, safetensors, weights_of, write_model
from toutates.command.main import main
from toutates.repositories.sentence_transformers.importing import ImportedModel, WantedModel, import_model
from toutates.system.errors import ConfigurationError

POOLING = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def modules_of(*modules: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(modules)
    ]


def embedder(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """A folder with all that sentence-transformers may write: a Dense module, prompts, a limit."""
    write_model(folder, config or BERT)
    modules = modules_of(("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3_Norm"))
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "query: "}}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    (folder / "2_Dense").mkdir()
    dense = {"in_features": 16, "out_features": 4, "bias": False, "activation_function": "torch.nn.Tanh"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(dense))
    weights = {"linear.weight": np.ones((4, 16), np.float32)}
    (folder / "2_Dense" / "model.safetensors").write_bytes(safetensors(weights))
    (folder / "train.log").write_text("not part of the model")
    return folder


def imported(folder: Path, repository: Path, **wanted: Any) -> ImportedModel:
    return import_model(folder, repository, WantedModel(**wanted))


def outputs_of(version: Path) -> list[tuple[str, list[Any]]]:
    session: Any = onnxruntime.InferenceSession(version / "model.onnx", providers=["CPUExecutionProvider"])
    return [(one.name, one.shape) for one in session.get_outputs()]


def test_a_folder_becomes_a_model_with_everything_that_it_declares(tmp_path: Path) -> None:
    folder = embedder(tmp_path / "little-model")
    done = imported(folder, tmp_path / "models")
    assert (done.model, done.version, done.path) == ("little-model", 1, tmp_path / "models" / "little-model" / "1")
    files = sorted(str(path.relative_to(done.path)) for path in done.path.rglob("*") if path.is_file())
    assert files == [
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "config.json"),
        *("config_sentence_transformers.json", "import.json", "model.onnx", "modules.json"),
        *("sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"),
    ]
    assert outputs_of(done.path) == [("last_hidden_state", ["batch", "length", 16])]
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["little-model"]
    assert done.loss is None


def test_an_encoder_may_have_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model(folder / "0_Transformer", BERT)
    modules = modules_of(("Transformer", "0_Transformer"), ("Pooling", "1_Pooling"))
    (folder / "modules.json").write_text(json.dumps(modules))
    done = imported(folder, tmp_path / "models", name="m", version=3)
    assert done.path == tmp_path / "models" / "m" / "3"
    assert outputs_of(done.path / "0_Transformer")
    assert (done.path / "0_Transformer" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("config", "modules", "settings", "expected"),
    [
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 1}, (), {}, ("logits", ["batch", 1])),
        (
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}},
            (("Transformer", ""),),
            {"transformer_task": "sequence-classification"},
            ("logits", ["batch", 3]),
        ),
        ({}, (("MLMTransformer", ""), ("SpladePooling", "1")), {}, ("logits", ["batch", "length", 50])),
        (
            {},
            (("Transformer", ""), ("SpladePooling", "1")),
            {"transformer_task": "fill-mask"},
            ("logits", ["batch", "length", 50]),
        ),
        ({"architectures": ["BertForMaskedLM"]}, (), {}, ("last_hidden_state", ["batch", "length", 16])),
    ],
    ids=["cross-encoder", "classifier", "splade", "new-splade", "no-modules"],
)
def test_the_output_is_what_the_folder_declares(
    config: dict[str, Any],
    modules: tuple[tuple[str, str], ...],
    settings: dict[str, Any],
    expected: tuple[str, list[Any]],
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    weights = {f"bert.{name}": value for name, value in weights_of(BERT).items()}
    labels = config.get("num_labels", len(config.get("id2label", ())))
    for name, *shape in (
        ("bert.pooler.dense.weight", 16, 16),
        ("bert.pooler.dense.bias", 16),
        ("cls.predictions.transform.dense.weight", 16, 16),
        ("cls.predictions.transform.dense.bias", 16),
        ("cls.predictions.transform.LayerNorm.weight", 16),
        ("cls.predictions.transform.LayerNorm.bias", 16),
        ("cls.predictions.bias", 50),
        ("classifier.weight", labels, 16),
        ("classifier.bias", labels),
    ):
        if expected[0] == "last_hidden_state" or name.startswith("classifier") == bool(labels) or "pooler" in name:
            weights[name] = rng.normal(size=shape).astype(np.float32)
    folder = write_model(tmp_path / "model", BERT | config, weights)
    if modules:
        (folder / "modules.json").write_text(json.dumps(modules_of(*modules)))
    if settings:
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    done = imported(folder, tmp_path / "models")
    assert outputs_of(done.path) == [expected]


def test_a_table_of_vectors_is_copied(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "table", BERT, {"embedding.weight": np.ones((50, 8), np.float32)})
    (folder / "config.json").unlink()
    (folder / "modules.json").write_text(json.dumps(modules_of(("StaticEmbedding", ""))))
    done = imported(folder, tmp_path / "models")
    files = sorted(path.name for path in done.path.iterdir())
    assert files == ["import.json", "model.safetensors", "modules.json", "tokenizer.json"]


def test_weights_may_lie_in_several_files(tmp_path: Path) -> None:
    weights = weights_of(BERT)
    folder = write_model(tmp_path / "model", BERT)
    whole = imported(folder, tmp_path / "whole")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = {"a.safetensors": names[:10], "b.safetensors": names[10:]}
    for file, some in files.items():
        (folder / file).write_bytes(safetensors({name: weights[name] for name in some}))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, some in files.items() for name in some}}))
    split = imported(folder, tmp_path / "split")
    assert (split.path / "model.onnx").read_bytes() == (whole.path / "model.onnx").read_bytes()
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "../a.safetensors")}))
    with pytest.raises(ConfigurationError, match=r"index\.json: weight_map: names a file that is no safetensors file"):
        imported(folder, tmp_path / "models")
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors")}))
    with pytest.raises(ConfigurationError, match="is missing in the file that the index names"):
        imported(folder, tmp_path / "models")


def test_quantizing_is_measured_and_written_down(tmp_path: Path) -> None:
    folder = embedder(tmp_path / "model")
    exact, small = imported(folder, tmp_path / "models"), imported(folder, tmp_path / "models", version=2, int8=True)
    loss = small.loss
    assert loss is not None
    assert 0 < loss.mean <= loss.worst < 0.5
    assert json.loads((small.path / "import.json").read_text())["loss"]["mean"] == loss.mean
    assert json.loads((small.path / "import.json").read_text())["weights"] == "int8"
    # Vectors of 16 values have overhead; only the kind of the weights is seen here.
    assert b"MatMulInteger" in (small.path / "model.onnx").read_bytes()
    assert b"MatMulInteger" not in (exact.path / "model.onnx").read_bytes()


def broken(tmp_path: Path, remove: str = "", **files: Any) -> Path:
    folder = embedder(tmp_path / "model")
    if remove:
        (folder / remove).unlink()
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_json", ".json")
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"remove": "tokenizer.json"}, "model: has no tokenizer.json; make one: AutoTokenizer"),
        ({"remove": "model.safetensors"}, "model: has no model.safetensors; save the model with safetensors"),
        ({"remove": "config.json"}, "config.json: is missing; copy the whole model folder"),
        ({"config_json": "{"}, "config.json: is no JSON"),
        ({"config_json": '{"a": 1, "a": 2}'}, "config.json: is no JSON: the key 'a' stands twice"),
        ({"config_json": '{"layer_norm_eps": NaN}'}, "config.json: is no JSON: NaN is no JSON number"),
        ({"config_json": "[" * 100_000}, "config.json: is nested too deeply"),
        ({"config_json": []}, "config.json: is no JSON object"),
        ({"modules_json": {}}, "modules.json: is no list of modules"),
        (
            {"modules_json": [{"type": "sentence_transformers.models.Pooling"}]},
            "json: [0]: has no type and path",
        ),
        ({"modules_json": modules_of(("Transformer", ""), ("Pooling", "../1"))}, "[1].path: leaves the folder"),
        ({"modules_json": modules_of(("CLIPModel", ""))}, "[0].type: is no encoder of texts that can be converted"),
        ({"modules_json": [{"type": "mine.Magic", "path": ""}]}, "[0].type: is Python code of the model's own"),
        (
            {"sentence_bert_config_json": {"transformer_task": "text-generation"}},
            "task: cannot be converted",
        ),
        ({"tokenizer_json": "{}"}, "tokenizer.json: cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_folder_that_cannot_be_imported_is_refused_and_leaves_nothing(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = broken(tmp_path, **change)
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        imported(folder, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_pickles_of_modules_are_refused(tmp_path: Path) -> None:
    folder = embedder(tmp_path / "model")
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match="2_Dense: Dense: has weights that are a pickle"):
        imported(folder, tmp_path / "models")


def test_a_version_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    folder = embedder(tmp_path / "model")
    imported(folder, tmp_path / "models")
    with pytest.raises(ConfigurationError, match="is there already; remove it first, or give another --model-version"):
        imported(folder, tmp_path / "models")
    with pytest.raises(ConfigurationError, match="lies in the folder"):
        imported(folder, folder / "models")


def test_a_snapshot_of_hugging_faces_cache_has_the_models_name(tmp_path: Path) -> None:
    cache = tmp_path / "models--owner--little-model"
    blobs = embedder(cache / "blobs")
    folder = cache / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(path)
    done = imported(folder, tmp_path / "models")
    assert done.model == "little-model"
    assert not any(path.is_symlink() for path in done.path.rglob("*"))


def test_other_architectures_need_optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedder(tmp_path / "model", BERT | {"model_type": "deberta-v2"} | {"num_hidden_layers": 2})
    monkeypatch.setitem(sys.modules, "optimum", None)
    with pytest.raises(ConfigurationError, match=r"'deberta-v2' is none of bert, .*; run 'pip install optimum-onnx'"):
        imported(folder, tmp_path / "models")


def test_what_optimum_writes_becomes_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real optimum brings PyTorch; what it is asked for, and what becomes of its file, can be seen without."""
    ready = imported(embedder(tmp_path / "ready"), tmp_path / "models")
    asked: dict[str, Any] = {}

    def main_export(model: str, output: Path, **options: Any) -> None:
        asked.update(options, model=model)
        (output / "model.onnx").write_bytes((ready.path / "model.onnx").read_bytes())

    for name in ("optimum", "optimum.exporters", "optimum.exporters.onnx"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["optimum.exporters.onnx"], "main_export", main_export, raising=False)
    folder = embedder(tmp_path / "other", BERT | {"hidden_act": "mish"})
    done = imported(folder, tmp_path / "models", with_optimum=True)
    assert asked["model"] == str(folder)
    assert asked["task"] == "feature-extraction"
    assert asked["local_files_only"] is True
    assert "trust_remote_code" not in asked
    assert outputs_of(done.path)


def test_the_command_imports_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = embedder(tmp_path / "model")
    models = tmp_path / "models"
    assert main(["import", str(folder), "--out", str(models), "--int8", "--model-name", "small"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"model 'small' version 1: {models}/small/1\nint8: cosine distance: ")
    assert said.err.startswith("writing the graph of a bert model\n")
    assert "note:" not in said.out  # the server takes it
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({**POOLING, "pooling_mode_attention": True}))
    assert main(["import", str(folder), "--out", str(models), "--model-name", "odd"]) == 0
    assert "note: it cannot be served as it is" in capsys.readouterr().out
    (folder / "config.json").write_text(json.dumps({**BERT, "use_alibi": True}))
    assert main(["import", str(folder), "--output", str(models)]) == 1
    assert "config.json: use_alibi: is not known for this architecture" in capsys.readouterr().err
    assert main(["import", str(folder), "--output", str(models), "--ignore-key", "use_alibi"]) == 0
    capsys.readouterr()
    assert main(["import", str(tmp_path / "nowhere.mar"), "--int8"]) == 1
    assert "--int8: holds for folders with a config.json" in capsys.readouterr().err
