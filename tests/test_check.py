"""``toutates check``: everything that is wrong with a repository, one line each, and an exit code for pipelines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.triton_repository import add_model, adder, build_triton_repository, custom, negative, write_config
from toutates.check import Report, check_repository
from toutates.cli import main

YAML = "backend: supertensor\nbatch_size: 4\ncapacity: 2\nnum_executors: 1\nallocator: cpu\n"


def test_a_sound_repository_has_no_problems_and_tells_its_buffers(tmp_path: Path) -> None:
    build_triton_repository(tmp_path)
    report = check_repository(tmp_path)
    assert report.problems == []
    # 8 batches of 8 rows: two inputs of 16 int32 and one output that is bound.
    assert "full 1: batched, SuperTensor 12.0 KiB (12288 bytes, 8 batches of 8)" in report.facts
    assert [fact.partition(":")[0] for fact in report.facts if fact.startswith("specific")] == [
        "specific 1",
        "specific 3",
    ]
    [warning] = report.warnings
    assert "warned/config.pbtxt" in warning


def test_rows_of_a_batch_are_those_that_it_will_have(tmp_path: Path) -> None:
    add_model(tmp_path, "large", negative(("n", 2**20)))
    add_model(tmp_path, "whole", negative((4, 4)))
    # Rows of 4 MiB, as many as 64 MiB take, and outputs that are not bound; and one tensor of 64 bytes as a whole.
    assert check_repository(tmp_path).facts == [
        "large 1: batched, SuperTensor 1.0 GiB (1073741824 bytes, 16 batches of 16)",
        "whole 1: unbatched, SuperTensor 2.0 KiB (2048 bytes, 16 batches of 1)",
    ]


def broken_yaml(root: Path) -> None:
    (add_model(root, "m", negative()) / "config.yaml").write_text(YAML + "typo: 1\nother: 2\n")


def declared_otherwise(root: Path) -> None:
    add_model(root, "m", negative())
    write_config(
        root,
        "m",
        'max_batch_size: 4 input { name: "INPUT" data_type: TYPE_INT8 dims: [ 5 ] } '
        'output { name: "RESULT" data_type: TYPE_FP32 dims: [ 4 ] }',
    )


def no_external_data(root: Path) -> None:
    folder = add_model(root, "m", adder(1))
    model = adder(1)
    onnx.save_model(
        model,
        folder / "model.onnx",
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="weights.data",
        size_threshold=0,
    )
    (folder / "weights.data").unlink()


def link_to_itself(root: Path) -> None:
    add_model(root, "m", negative())
    (root / "loop").symlink_to(root / "loop")


def link_back(root: Path) -> None:
    add_model(root, "m", negative())
    (root / "m" / "2").symlink_to(root / "m")


def no_graph_there(root: Path) -> None:
    add_model(root, "m", negative())
    (root / "m" / "1" / "model.onnx").rename(root / "m" / "1" / "other.onnx")


def no_warmup_file(root: Path) -> None:
    add_model(root, "m", negative())
    write_config(
        root,
        "m",
        'model_warmup { name: "w" '
        'inputs { key: "INPUT" value { data_type: TYPE_FP32 dims: 4 input_data_file: "f" } } }',
    )


#: What to write, and per problem: its file, what it names, and the remedy.
PROBLEMS: dict[str, tuple[Callable[[Path], object], list[tuple[str, str, str]]]] = {
    "two keys of config.yaml": (
        broken_yaml,
        [
            ("m/1/config.yaml", "typo: unknown key", "known keys"),
            ("m/1/config.yaml", "other: unknown key", "known keys"),
        ],
    ),
    "tensors declared otherwise": (
        declared_otherwise,
        [
            (
                "m/config.pbtxt",
                "unable to load model 'm', configuration expects datatype TYPE_INT8 for input 'INPUT', model provides "
                "TYPE_FP32",
                "write TYPE_FP32",
            ),
            (
                "m/config.pbtxt",
                "model 'm', tensor 'INPUT': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
                "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
                "explicit tensor shape, making complete shape [-1,5])",
                "write dims: [4]",
            ),
            ("m/config.pbtxt", "unexpected inference output 'RESULT', allowed outputs are: OUTPUT", "as the graph"),
        ],
    ),
    "not batchable": (
        lambda root: (add_model(root, "m", negative([2, 4])), write_config(root, "m", "max_batch_size: 8")),
        [
            (
                "m/config.pbtxt",
                "max_batch_size: autofill failed for model 'm': model does not support batching while non-zero "
                "max_batch_size is specified; the first dimension is fixed of INPUT, OUTPUT (got 8)",
                "write max_batch_size: 0",
            )
        ],
    ),
    "future opset": (
        lambda root: add_model(root, "m", negative(opset=99)),
        [("m/1/model.onnx", "pset", "export the model for an older opset")],
    ),
    "custom operator": (
        lambda root: add_model(root, "m", custom()),
        [("m/1/model.onnx", "Mystery", "--custom-op-libraries")],
    ),
    "no graph": (
        lambda root: add_model(root, "m", b"this is no graph"),
        [("m/1/model.onnx", "cannot load 'model.onnx'", "is no ONNX graph")],
    ),
    "missing weights": (no_external_data, [("m/1/model.onnx", "weights.data", "put the file with the weights")]),
    "missing graph": (no_graph_there, [("m/1/model.onnx", "unable to find", "put the graph there")]),
    "missing warm-up file": (
        no_warmup_file,
        [("m/config.pbtxt", "warmup 'w' inputs['INPUT'] file: cannot be read: No such file", "put the file there")],
    ),
    "config.pbtxt that is none": (
        lambda root: (add_model(root, "m", negative()), write_config(root, "m", "max_batch: 1")),
        [("m/config.pbtxt", "failed to read text proto from", "did you mean `max_batch_size`?")],
    ),
    "link to itself": (link_to_itself, [("loop", "is a link to itself", "mend or remove it")]),
    "link back": (
        link_back,
        [("m/2", "is a link back to", "remove it"), ("m/2/model.onnx", "unable to find", "put the graph there")],
    ),
    "model without a version": (
        lambda root: ((root / "m").mkdir(), write_config(root, "m", "max_batch_size: 0")),
        [("m", "no version directory", "remove the directory")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "expected"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_each_problem_is_one_line_with_file_key_and_remedy(
    tmp_path: Path, build: Callable[[Path], object], expected: list[tuple[str, str, str]]
) -> None:
    build(tmp_path)
    report = check_repository(tmp_path)
    assert len(report.problems) == len(expected), report.problems
    for file, problem, remedy in expected:
        [line] = [line for line in report.problems if problem in line and str(tmp_path / file) in line]
        assert remedy in line
        assert "\n" not in line


def test_problems_of_all_models_are_told_at_once(tmp_path: Path) -> None:
    root = tmp_path / "all"
    root.mkdir()
    for at, (build, _) in enumerate(PROBLEMS.values()):
        own = tmp_path / str(at)
        own.mkdir()
        build(own)
        (own / "m").rename(root / f"m{at}")
    named = {line.partition(str(root))[2].split("/")[1].partition(":")[0] for line in check_repository(root).problems}
    # All but the link in the repository's own directory.
    assert named == {f"m{at}" for at, name in enumerate(PROBLEMS) if name != "link to itself"}


def warn(tmp_path: Path, build: Callable[[Path], object]) -> Report:
    build(tmp_path)
    report = check_repository(tmp_path)
    assert report.problems == []
    return report


def test_two_configurations_are_a_warning(tmp_path: Path) -> None:
    def build(root: Path) -> None:
        (add_model(root, "m", negative()) / "config.yaml").write_text(YAML)
        write_config(root, "m", "max_batch_size: 8")

    report = warn(tmp_path, build)
    [warning] = report.warnings
    assert f"{tmp_path}/m/1/config.yaml' holds, and not '{tmp_path}/m/config.pbtxt'" in warning
    assert report.facts == ["m 1: batched, SuperTensor 256 bytes (256 bytes, 2 batches of 4)"]


def test_odd_version_directories_and_versions_that_are_not_there_are_warnings(tmp_path: Path) -> None:
    def build(root: Path) -> None:
        add_model(root, "m", negative())
        for name in ("01", "latest", "v2"):
            (root / "m" / name).mkdir()
        write_config(root, "m", "version_policy { specific { versions: [ 1, 9 ] } }")

    warnings = warn(tmp_path, build).warnings
    for name in ("01", "latest", "v2", "9"):
        assert sum(f"m/{name}'" in warning for warning in warnings) == 1


def test_a_batch_size_that_the_graph_cannot_have_is_a_warning(tmp_path: Path) -> None:
    def build(root: Path) -> None:
        (add_model(root, "m", negative([1, 4])) / "config.yaml").write_text(YAML)

    [warning] = warn(tmp_path, build).warnings
    assert "m/1/config.yaml: batch_size: the model is not batched" in warning
    assert "INPUT [1, 4]" in warning


def test_buffers_beyond_the_memory_are_a_problem(tmp_path: Path) -> None:
    add_model(tmp_path, "m", negative(["n", 1024]))
    full = 16 * 64 * 2 * 4096
    assert check_repository(tmp_path, memory=lambda: full).problems == []
    [problem] = check_repository(tmp_path, memory=lambda: full - 1).problems
    assert problem.startswith(f"{tmp_path}: capacity: the buffers of all models take 8.0 MiB")
    assert "lower capacity" in problem


def test_a_repository_without_models_is_a_warning(tmp_path: Path) -> None:
    assert "has no models" in warn(tmp_path, lambda root: None).warnings[0]


def test_the_command_prints_one_line_each_and_exits_with_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(tmp_path, "fine", negative())
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "fine 1: batched, SuperTensor 32.0 KiB (32768 bytes, 16 batches of 64)",
        "0 errors, 0 warnings",
    ]
    (tmp_path / "fine" / "odd").mkdir()
    assert main(["check", str(tmp_path)]) == 0
    assert main(["check", str(tmp_path), "--strict"]) == 1
    add_model(tmp_path, "broken", b"nothing")
    capsys.readouterr()
    assert main(["check", str(tmp_path)]) == 1
    *_, error, end = capsys.readouterr().out.splitlines()
    assert error.startswith(f"error: {tmp_path}/broken/1/model.onnx: ")
    assert end == "1 errors, 1 warnings"


@pytest.mark.parametrize("arguments", [[], ["s3://bucket/models"], ["/does/not/exist"], [".", "--what"]])
def test_a_command_line_that_cannot_be_used_exits_with_2(arguments: list[str]) -> None:
    assert main(["check", *arguments]) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="file modes do not bind root")
def test_an_unreadable_graph_is_a_problem(tmp_path: Path) -> None:
    (add_model(tmp_path, "m", negative()) / "model.onnx").chmod(0)
    assert len(check_repository(tmp_path).problems) == 1
