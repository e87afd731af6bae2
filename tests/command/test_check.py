"""``toutates check``: everything that is wrong with a repository, one line each, and an exit code for pipelines."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.triton_repository import add_model, adder, build_triton_repository, custom, negative, write_config
from toutates.backends.onnx.loader import OnnxKind
from toutates.backends.onnx.opening import SessionOptions
from toutates.backends.onnx.provider_names import Provider
from toutates.command.check import Report, check_repository
from toutates.command.main import main
from toutates.models.config.configuration import load_configuration
from toutates.models.repository import scan
from toutates.repositories.local.repository import LocalRepository
from toutates.system.errors import ConfigurationError

YAML = "backend: supertensor\nbatch_size: 4\ncapacity: 2\nnum_executors: 1\nallocator: cpu\n"


def test_a_sound_repository_has_no_problems_and_tells_its_buffers(tmp_path: Path) -> None:
    build_triton_repository(tmp_path)
    report = check_repository(tmp_path)
    assert report.problems == []
    # 128 batches of 8 rows: two inputs of 16 int32 and one output that is bound.
    assert "full 1: batched, SuperTensor 192.0 KiB (196608 bytes, 128 batches of 8)" in report.facts
    assert [fact.partition(":")[0] for fact in report.facts if fact.startswith("specific")] == [
        "specific 1",
        "specific 3",
    ]
    assert len(report.warnings) == 2
    assert all("warned/config.pbtxt" in warning for warning in report.warnings)


def test_rows_of_a_batch_are_those_that_it_will_have(tmp_path: Path) -> None:
    add_model(tmp_path, "large", negative(("n", 2**20)))
    add_model(tmp_path, "whole", negative((4, 4)))
    # Rows of 4 MiB, as many as 64 MiB take, and outputs that are not bound; and one tensor of 64 bytes as a whole.
    # And perhaps a hint, where a run of so large a row takes long.
    assert [fact for fact in check_repository(tmp_path).facts if "SuperTensor" in fact] == [
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


def no_version(root: Path) -> None:
    (root / "m").mkdir()
    write_config(root, "m", "max_batch_size: 0")


def no_graph_there(root: Path) -> None:
    (add_model(root, "m", negative()) / "model.onnx").unlink()


def another_graph_there(root: Path) -> None:
    folder = add_model(root, "m", negative())
    (folder / "model.onnx").rename(folder / "other.onnx")


def plan_there(root: Path) -> None:
    folder = add_model(root, "m", negative())
    (folder / "model.onnx").rename(folder / "model.plan")


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
    "another graph": (another_graph_there, [("m/1/model.onnx", "but 'other.onnx'", "rename it to model.onnx, or")]),
    "TensorRT plan": (plan_there, [("m/1/model.onnx", "but 'model.plan'; TensorRT plans are not", "the ONNX model")]),
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
        no_version,
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


def test_labels_that_are_missing_are_a_problem_and_too_few_a_warning(tmp_path: Path) -> None:
    add_model(tmp_path, "m", negative())
    output = 'output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" }'
    source = write_config(tmp_path, "m", "max_batch_size: 4 " + output)
    labels = tmp_path / "m" / "labels.txt"
    [problem] = check_repository(tmp_path).problems
    assert problem == (
        f"{source}: output 'OUTPUT' label_filename: failed to open text file for read '{labels}': No such "
        "file or directory; put the file there, or leave the output without labels"
    )
    labels.write_text("a\nb\n")
    report = check_repository(tmp_path)
    assert report.problems == []
    assert report.warnings == [f"'{source}': output 'OUTPUT' has 4 values, and 'labels.txt' 2 labels"]


def test_two_configurations_are_a_warning(tmp_path: Path) -> None:
    def build(root: Path) -> None:
        (add_model(root, "m", negative()) / "config.yaml").write_text(YAML)
        write_config(root, "m", "max_batch_size: 8")

    report = warn(tmp_path, build)
    [warning] = report.warnings
    assert f"{tmp_path}/m/1/config.yaml' holds, and not '{tmp_path}/m/config.pbtxt'" in warning
    assert report.facts == ["m 1: batched, SuperTensor 256 bytes (256 bytes, 2 batches of 4)"]


@pytest.mark.parametrize(
    ("lies", "beside", "told"),
    [
        ("m/config.yaml", "", "'{}/m/config.yaml' is not read, * move it to '{}/m/1/config.yaml'"),
        ("m/config.yml", "", "'{}/m/config.yml' is not read, * move it to '{}/m/1/config.yaml'"),
        ("m/config.yaml", "m/1/config.yaml", "'{}/m/config.yaml' is not read, * there is '{}/m/1/config.yaml'"),
        ("m/1/config.pbtxt", "", "'{}/m/1/config.pbtxt' is not read, * move it to '{}/m/config.pbtxt'"),
        ("m/1/config.pbtxt", "m/config.pbtxt", "'{}/m/1/config.pbtxt' is not read, * there is '{}/m/config.pbtxt'"),
    ],
)
def test_a_configuration_that_lies_where_none_is_read_is_a_warning(
    tmp_path: Path, lies: str, beside: str, told: str
) -> None:
    def build(root: Path) -> None:
        add_model(root, "m", negative())
        (root / lies).write_text("nothing reads this")
        if beside:
            (root / beside).write_text(YAML if beside.endswith("yaml") else "max_batch_size: 4")

    warning = warn(tmp_path, build).warnings[0]
    start, end = told.replace("{}", str(tmp_path)).split("*")
    assert warning.startswith(start)
    assert warning.endswith(end)


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


def test_a_repository_without_models_is_a_problem(tmp_path: Path) -> None:
    [problem] = check_repository(tmp_path).problems
    assert problem == (
        f"{tmp_path}: has no models; put one directory there for each model, such as '{tmp_path}/NAME/1/model.onnx'"
    )


def test_a_graph_alone_is_checked_under_the_directorys_name(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(negative().SerializeToString())
    (tmp_path / "config.pbtxt").write_text(
        'max_batch_size: 4 output { name: "OUTPUT" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }'
    )
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\n")
    report = check_repository(tmp_path)
    assert (report.problems, report.warnings) == ([], [])
    assert report.facts[0].startswith(f"{tmp_path.name} 1: batched")


def test_loose_graphs_are_problems_with_the_path_that_would_be_right(tmp_path: Path) -> None:
    for name in ("model.onnx", "resnet.onnx"):
        (tmp_path / name).write_bytes(negative().SerializeToString())
    problems = check_repository(tmp_path).problems
    assert problems[:2] == [
        f"{tmp_path}/model.onnx: lies in no model's directory, and is not served; "
        f"move it to '{tmp_path}/NAME/1/model.onnx'",
        f"{tmp_path}/resnet.onnx: lies in no model's directory, and is not served; "
        f"move it to '{tmp_path}/resnet/1/model.onnx'",
    ]
    add_model(tmp_path, "m", negative())
    assert check_repository(tmp_path).problems == problems[:2]


def repository_with_one_model(root: Path) -> Path:
    (root / "models").mkdir()
    add_model(root / "models", "m", negative())
    return root / "models"


#: What is given in place of DIRECTORY/models, what is said of it, and which path is named.
WRONG_PLACES = {
    "a directory that is not there": ("modles", "there is no such directory", "did you mean '{}/models'?"),
    "below one that is not there": ("modles/m", "there is no such directory", "did you mean '{}/models'?"),
    "a model's own directory": ("models/m", "is the directory of one model, whose version 1", "name '{}/models'"),
    "a version": ("models/m/1", "is the directory of version 1 of the model 'm'", "name '{}/models'"),
    "a graph": ("models/m/1/model.onnx", "is not a directory", "name '{}/models'"),
    "the directory above": ("", "has no models, but its directory 'models' has some", "name '{}/models'"),
}


@pytest.mark.parametrize(("given", "problem", "remedy"), WRONG_PLACES.values(), ids=WRONG_PLACES.keys())
def test_what_is_no_repository_is_refused_with_the_path_that_would_be_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, problem: str, remedy: str
) -> None:
    repository_with_one_model(tmp_path)
    wrong = str(tmp_path / given)
    assert main(["check", wrong]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"toutates: error: REPOSITORY: {problem}")
    assert said.endswith(f"(got '{wrong}'); {remedy.format(tmp_path)}\n")
    # What a server says names the flag.
    with pytest.raises(ConfigurationError) as caught:
        LocalRepository(Path(wrong)).scan()
    assert str(caught.value).startswith(f"--model-repository: {problem}")


def test_a_model_may_be_called_like_a_version(tmp_path: Path) -> None:
    add_model(tmp_path, "1", negative())
    assert check_repository(tmp_path).problems == []


# --- devices


GPU: Sequence[Provider] = (("CUDAExecutionProvider", {"device_id": "0"}), ("CPUExecutionProvider", {}))


def wants_gpu(root: Path) -> None:
    add_model(root, "m", negative())
    write_config(root, "m", "instance_group { kind: KIND_GPU gpus: [ 0, 3 ] }")


def test_a_gpu_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    wants_gpu(tmp_path)
    [problem] = check_repository(tmp_path).problems
    assert problem.startswith(
        f"{tmp_path}/m/config.pbtxt: devices: instance group of model m has kind KIND_GPU but no GPUs are available"
    )
    assert "write KIND_AUTO" in problem
    # A server with CUDA, whose fourth GPU cannot be started.
    tried: list[object] = []

    def device_problem(providers: Sequence[Provider]) -> str:
        tried.append(providers)
        return "CUDA failure 101: invalid device ordinal" if providers[0][1]["device_id"] == "3" else ""

    [problem] = check_repository(tmp_path, providers=GPU, device_problem=device_problem).problems
    assert "m/1/model.onnx: CUDA failure 101" in problem
    assert len(tried) == 2


def test_the_command_looks_for_gpus_unless_they_are_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wants_gpu(tmp_path)
    assert main(["check", str(tmp_path), "--execution-providers", "cpu"]) == 1
    assert "no GPUs are available" in capsys.readouterr().out
    assert main(["check", str(tmp_path), "--assume-gpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 errors, 0 warnings"
    assert main(["check", str(tmp_path), "--execution-providers", "gpu"]) == 2


def test_an_accelerator_on_the_cpu_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_model(tmp_path, "m", negative())
    write_config(
        tmp_path,
        "m",
        "instance_group { kind: KIND_CPU } optimization { execution_accelerators "
        '{ gpu_execution_accelerator { name: "tensorrt" } } }',
    )
    report = check_repository(tmp_path)
    assert report.problems == []
    text = (
        f"'{tmp_path}/m/config.pbtxt': GPU Execution Accelerator will be ignored for model instance on CPU: tensorrt; "
        "where there is a GPU, write KIND_GPU (config.yaml: gpu:0 in devices), else remove it"
    )
    assert report.warnings == [text]
    [folder] = scan(tmp_path)
    loader = OnnxKind(SessionOptions())
    loader.load("m", load_configuration(folder.versions[0]))
    assert f"model 'm' version 1: {text}" in caplog.text


def test_pinned_buffers_without_cuda_are_a_problem(tmp_path: Path) -> None:
    (add_model(tmp_path, "m", negative()) / "config.yaml").write_text(YAML.replace("cpu", "cuda_pinned"))
    [problem] = check_repository(tmp_path).problems
    assert "page-locked memory needs the CUDA or TensorRT execution provider" in problem


def test_a_warm_up_sample_that_fails_is_a_problem(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Gather", ["data", "INPUT"], ["OUTPUT"])
    data = onnx.numpy_helper.from_array(np.zeros(4, np.float32), "data")
    tensors = [
        onnx.helper.make_tensor_value_info("INPUT", onnx.TensorProto.INT64, ["n", 2]),
        onnx.helper.make_tensor_value_info("OUTPUT", onnx.TensorProto.FLOAT, ["n", 2]),
    ]
    graph = onnx.helper.make_graph([node], "g", tensors[:1], tensors[1:], [data])
    add_model(
        tmp_path, "m", onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    )
    write_config(
        tmp_path,
        "m",
        'model_warmup { name: "w" '
        'inputs { key: "INPUT" value { data_type: TYPE_INT64 dims: 2 input_data_file: "f" } } }',
    )
    (tmp_path / "m" / "warmup").mkdir()
    (tmp_path / "m" / "warmup" / "f").write_bytes(np.array([7, 8], np.int64).tobytes())
    [problem] = check_repository(tmp_path).problems
    assert "failed to run warmup sample 'w'" in problem
    assert problem.endswith("; correct the sample, or the graph that it is for")


def test_the_command_prints_one_line_each_and_exits_with_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(tmp_path, "fine", negative())
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "fine 1: batched, SuperTensor 32.0 KiB (32768 bytes, 16 batches of 64)",
        "0 errors, 0 warnings",
    ]
    (tmp_path / "fine" / "v1").mkdir()
    assert main(["check", str(tmp_path)]) == 0
    assert main(["check", str(tmp_path), "--strict"]) == 1
    add_model(tmp_path, "broken", b"nothing")
    capsys.readouterr()
    assert main(["check", str(tmp_path)]) == 1
    *_, error, end = capsys.readouterr().out.splitlines()
    assert error.startswith(f"error: {tmp_path}/broken/1/model.onnx: ")
    assert end == "1 errors, 1 warnings"


@pytest.mark.parametrize(
    "arguments", [[], ["ftp://bucket/models"], ["/does/not/exist"], [".", "--what"], [".", "--s3-region", "x"]]
)
def test_a_command_line_that_cannot_be_used_exits_with_2(arguments: list[str]) -> None:
    assert main(["check", *arguments]) == 2


# --- what may not be read


@contextmanager
def file_modes_bind() -> Iterator[None]:
    """Root may read whatever its mode says; within the block the process is somebody else, if it is root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user may look into, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


#: What is made unreadable, and what the problem begins with.
UNREADABLE: dict[str, tuple[str, str]] = {
    "graph": ("m/1/model.onnx", "cannot read '{}/m/1/model.onnx': Permission denied"),
    "weights": ("m/1/weights.data", "cannot read '{}/m/1/weights.data': Permission denied"),
    "config.pbtxt": ("m/config.pbtxt", "failed to read text proto from {}/m/config.pbtxt: Permission denied"),
    "version": ("m/1", "m/1/config.yaml: cannot be read: Permission denied"),
    "model": ("m", "m: cannot read '{}/m': Permission denied"),
}


@pytest.mark.parametrize(("name", "problem"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_may_not_be_read_is_a_problem_that_says_so(open_path: Path, name: str, problem: str) -> None:
    model = adder(1)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((1, 4), np.int32), "number"))
    folder = add_model(open_path, "m", negative())
    onnx.save_model(model, folder / "model.onnx", save_as_external_data=True, location="weights.data", size_threshold=0)
    write_config(open_path, "m", "max_batch_size: 4")
    assert check_repository(open_path).problems == []
    (open_path / name).chmod(0)
    try:
        with file_modes_bind():
            problems = check_repository(open_path).problems
    finally:
        (open_path / name).chmod(0o755)
    assert len(problems) == 1, problems
    assert problem.format(open_path) in problems[0]
    assert "make it readable" in problems[0]
