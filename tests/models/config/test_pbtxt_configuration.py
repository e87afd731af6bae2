"""What a config.pbtxt comes to: settings, versions, warnings and refusals, in Triton's words where it has some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.immutable import mutable_parts
from toutates.backends.onnx.executor_sessions import executor_session_options
from toutates.backends.onnx.opening import SessionOptions
from toutates.models.config.pbtxt import parse_pbtxt
from toutates.models.config.settings import (
    ModelSettings,
    ProfilingSettings,
    RateLimit,
    ResourceNeed,
    SessionSettings,
    WarmupInput,
    WarmupSample,
)
from toutates.models.config.triton_configuration import (
    TritonConfiguration,
    read_triton_configuration,
    triton_configuration,
)
from toutates.models.config.triton_fields import FIELDS
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.system.errors import ConfigurationError

SOURCE = Path("models/m/config.pbtxt")
CPU = ("CPUExecutionProvider", dict[str, str]())
CUDA = ("CUDAExecutionProvider", {"device_id": "0"})

INPUT = 'input { name: "x" data_type: TYPE_FP32 dims: 4 }\n'
OUTPUT = 'output { name: "y" data_type: TYPE_FP32 dims: 4 }\n'


def read(text: str) -> TritonConfiguration:
    return triton_configuration(parse_pbtxt(text, SOURCE), "m", SOURCE)


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(text)
    return str(caught.value)


def paths_of(message: Any, prefix: str = "") -> set[str]:
    """Of every field below which none is a message without a rule."""
    paths: set[str] = set()
    for field in message.fields:
        path = prefix + field.name
        if path in FIELDS or field.message_type is None:
            paths.add(path)
        else:
            paths |= paths_of(field.message_type, path + ".")
    return paths


def test_every_field_of_a_model_config_has_a_rule() -> None:
    assert paths_of(ModelConfig.DESCRIPTOR) == set(FIELDS)


def test_an_empty_file_leaves_everything_to_the_graph_but_the_versions() -> None:
    configuration = read("")
    assert configuration.settings == ModelSettings()
    assert configuration.version_policy.latest.num_versions == 1
    assert configuration.warning == ""


@pytest.mark.parametrize(
    ("text", "chosen", "missing"),
    [
        ("", [7], []),
        ("version_policy { latest { num_versions: 2 } }", [3, 7], []),
        ("version_policy { latest { num_versions: 9 } }", [1, 3, 7], []),
        ("version_policy { latest { } }", [7], []),
        ("version_policy { all { } }", [1, 3, 7], []),
        ("version_policy { specific { versions: [ 3, 1, 4, 3 ] } }", [1, 3], [4]),
        ("version_policy { specific { } }", [], []),
    ],
)
def test_a_version_policy_chooses_from_what_is_there(text: str, chosen: list[int], missing: list[int]) -> None:
    assert read(text).chosen([1, 7, 3]) == (chosen, missing)


@pytest.mark.parametrize(
    ("text", "batching", "batch_size", "capacity"),
    [
        pytest.param("", True, 64, 16, id="all from the graph"),
        pytest.param("max_batch_size: 8", True, 8, 128, id="size given"),
        pytest.param("max_batch_size: 1", True, 1, 1024, id="one"),
        pytest.param(INPUT, True, 64, 16, id="inputs only"),
        pytest.param(INPUT + OUTPUT, False, 1, 1024, id="complete, so unbatched"),
        pytest.param(INPUT + OUTPUT + "max_batch_size: 4096", True, 4096, 16, id="complete and batched"),
    ],
)  # fmt: skip
def test_batching_follows_max_batch_size(text: str, batching: bool, batch_size: int, capacity: int) -> None:
    settings = read(text).settings
    assert (settings.batching, settings.batch_size, settings.capacity) == (batching, batch_size, capacity)


@pytest.mark.parametrize(("queue_size", "instances", "capacity"), [(20, 1, 128), (200, 3, 203), (1_000_000, 1, 65_536)])
def test_a_bounded_queue_has_room_for_the_rows_of_all_its_requests(
    queue_size: int, instances: int, capacity: int
) -> None:
    policy = f"dynamic_batching {{ default_queue_policy {{ max_queue_size: {queue_size} }} }}"
    settings = read(f"max_batch_size: 8 instance_group {{ count: {instances} }} {policy}").settings
    assert (settings.max_queue_size, settings.capacity) == (queue_size, capacity)


@pytest.mark.parametrize(
    ("text", "num_executors", "devices"),
    [
        ("instance_group { count: 3 }", 3, ()),
        ("instance_group { kind: KIND_MODEL }", 1, ()),
        ("instance_group { count: 2 kind: KIND_CPU }", 2, ("cpu",)),
        ("instance_group { kind: KIND_GPU }", 1, ("gpu:0",)),
        (
            "instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }",
            4,
            ("gpu:0", "gpu:1", "gpu:0", "gpu:1"),
        ),
        ("instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU gpus: 2 } ]", 2, ("cpu", "gpu:2")),
    ],
)
def test_instance_groups_become_executors_and_devices(text: str, num_executors: int, devices: tuple[str, ...]) -> None:
    settings = read(text).settings
    assert (settings.num_executors, settings.devices) == (num_executors, devices)


def test_rate_limiters_of_groups_are_those_of_their_executors() -> None:
    text = """
    instance_group [
      { count: 2 rate_limiter {
        resources [ { name: "R1" count: 4 }, { name: "R2" global: true count: 2 } ] priority: 2
      } },
      { kind: KIND_CPU }
    ]"""
    settings = read(text).settings
    limit = RateLimit((ResourceNeed("R1", 4), ResourceNeed("R2", 2, is_global=True)), 2)
    assert settings.rate_limits == (limit, limit, RateLimit())
    assert [settings.rate_limit(number) for number in range(4)] == [limit, limit, RateLimit(), limit]
    assert read("instance_group { rate_limiter { priority: 0 } }").settings.rate_limits == ()
    twice = 'resources [ { name: "R" count: 1 }, { name: "R" count: 2 } ]'
    with pytest.raises(ConfigurationError, match=r"instance_group\[0\].rate_limiter.resources: is there twice"):
        read(f"instance_group {{ rate_limiter {{ {twice} }} }}")


def test_parameters_and_optimization_become_options_of_the_session() -> None:
    values = {
        "intra_op_thread_count": "4",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "false",
        "memory.enable_memory_arena_shrinkage": "cpu:0",
        "session.use_device_allocator_for_initializers": "1",
        "toutates.capacity": "5",
        "toutates.capacity_bytes": "600",
        "toutates.latency_target_ms": "12.5",
        "toutates.profiling.file_prefix": "/tmp/p",
    }
    parameters = "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in values.items())
    configuration = read(parameters + "optimization { graph { level: 2 } }")
    assert configuration.warning == ""
    settings = configuration.settings
    assert settings.session == SessionSettings(4, 2, "parallel", "off", False, False, "cpu:0", True)
    assert (settings.capacity, settings.capacity_bytes, settings.latency_target_ms) == (5, 600, 12.5)
    assert settings.profiling == ProfilingSettings("/tmp/p")
    options = executor_session_options(SessionOptions(), settings, 0, model="m", source=SOURCE)
    assert (options.intra_threads, options.inter_threads, options.parallel, options.graph_level) == (4, 2, True, "off")
    assert (options.memory_arena, options.memory_pattern) == (False, False)
    assert options.config_entries == (("session.use_device_allocator_for_initializers", "1"),)


ACCELERATED = """
optimization { execution_accelerators { gpu_execution_accelerator [
  { name: "tensorrt"
    parameters { key: "precision_mode" value: "FP16" }
    parameters { key: "max_workspace_size_bytes" value: "1073741824" }
    parameters { key: "trt_engine_cache_enable" value: "1" } },
  { name: "cuda" parameters { key: "cudnn_conv_use_max_workspace" value: "0" } }
] } }
parameters { key: "cudnn_conv_algo_search" value { string_value: "1" } }
"""
TENSORRT = {"trt_fp16_enable": "1", "trt_max_workspace_size": "1073741824", "trt_engine_cache_enable": "1"}
CUDA_OPTIONS = {"cudnn_conv_algo_search": "HEURISTIC", "cudnn_conv_use_max_workspace": "0"}


def providers(text: str, *server: Any, executor: int = 0) -> Any:
    settings = read(text).settings
    return executor_session_options(SessionOptions(server), settings, executor, model="m", source=SOURCE).providers


def test_accelerators_are_providers_where_there_is_a_gpu() -> None:
    assert providers(ACCELERATED, CUDA, CPU) == (
        ("TensorrtExecutionProvider", {"device_id": "0"} | TENSORRT),
        ("CUDAExecutionProvider", {"device_id": "0"} | CUDA_OPTIONS),
        CPU,
    )
    assert providers(ACCELERATED, CPU) == (CPU,)


def test_what_models_share_cannot_be_changed_in_place() -> None:
    warmup = 'model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }'
    found = read(f"{ACCELERATED} {warmup} metric_tags {{ key: 'a' value: 'b' }}")
    assert [*mutable_parts(found.settings), *mutable_parts(found.declared)] == []
    for server in ((CPU,), (CUDA, CPU)):
        options = executor_session_options(SessionOptions(server), found.settings, 0, model="m", source=SOURCE)
        assert [*mutable_parts(options)] == []


def test_each_executor_has_its_device() -> None:
    text = "instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU gpus: [ 1, 3 ] } ]"
    assert providers(text, CUDA, CPU) == (CPU,)
    for executor, gpu in ((1, "1"), (2, "3")):
        found = providers(text, CUDA, CPU, executor=executor)
        assert found == (("CUDAExecutionProvider", {"device_id": gpu}), CPU)


def test_a_gpu_that_is_asked_for_and_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        providers("instance_group { kind: KIND_GPU }", CPU)
    assert "instance group of model m has kind KIND_GPU but no GPUs are available" in str(caught.value)
    assert "--execution-providers cuda" in str(caught.value)


def test_warmup_samples_are_read() -> None:
    text = """
    max_batch_size: 8
    model_warmup [ {
      name: "a" batch_size: 8 count: 3
      inputs [ { key: "x" value { data_type: TYPE_STRING dims: [ 2 ] input_data_file: "sub/file" } },
               { key: "w" value { data_type: TYPE_FP16 random_data: true } } ]
    }, { name: "b" inputs { key: "x" value { data_type: TYPE_BOOL dims: 1 zero_data: true } } } ]
    """
    assert read(text).settings.warmup == (
        WarmupSample(
            "a",
            {"w": WarmupInput("FP16", (), "random"), "x": WarmupInput("BYTES", (2,), "file", "sub/file")},
            batch_size=8,
            count=3,
        ),
        WarmupSample("b", {"x": WarmupInput("BOOL", (1,))}),
    )


def test_dynamic_batching_is_read() -> None:
    settings = read(
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 500 "
        "preserve_ordering: true }"
    ).settings
    assert (settings.preferred_batch_sizes, settings.max_queue_delay_us, settings.preserve_ordering) == (
        (4, 8),
        500,
        True,
    )


REFUSED = {
    "another name": (
        "name: 'n'",
        "unexpected directory name 'm' for model 'n', directory name must equal model name",
    ),
    "misspelt platform": (
        "platform: 'onnxruntime'",
        "platform: is not known (got 'onnxruntime'); write platform: 'onnxruntime_onnx'",
    ),
    "unknown platform": (
        "platform: 'own'",
        "platform: is not known (got 'own'); name the backend in `backend` instead",
    ),
    "platform of another backend": (
        "platform: 'onnxruntime_onnx' backend: 'pytorch'",
        "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, pytorch; keep the right one of the two",
    ),
    "batch size": ("max_batch_size: -1", "max_batch_size: is not from 0 to 1048576 (got -1)"),
    "no dims": ("input { name: 'x' data_type: TYPE_FP32 }", "model input 'x' must specify 'dims' for m"),
    "no datatype": ("output { name: 'y' dims: 1 }", "model output 'y' must specify 'data_type' for m"),
    "no name": ("input { data_type: TYPE_FP32 dims: 1 }", "model input must specify 'name' for m"),
    "twice": (INPUT + INPUT, "input 'x': is declared twice"),
    "dimension": ("input { name: 'x' data_type: TYPE_FP32 dims: 0 }", "must be integer >= 1, or -1"),
    "reshape": (
        "input { name: 'x' data_type: TYPE_FP32 dims: [ 2, 3 ] reshape { shape: [ 5 ] } }",
        "model input 'x' for m has different size for dims and reshape (got [5])",
    ),
    "reshape of open sizes": (
        "input { name: 'x' data_type: TYPE_FP32 dims: [ 2, -1 ] reshape { shape: [ -1, 2 ] } }",
        "has different size for dims and reshape",
    ),
    "optional in a batch": (
        "max_batch_size: 2 input { name: 'x' data_type: TYPE_FP32 dims: 1 optional: true }",
        "input 'x' optional: optional inputs are for models without batching",
    ),
    "preferred": (
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }",
        "dynamic batching preferred size must be <= max batch size for m (got 5)",
    ),
    "delay": ("dynamic_batching { max_queue_delay_microseconds: 60000001 }", "is above 60000000 (got 60000001)"),
    "gpus of the CPU": (
        "instance_group { kind: KIND_CPU gpus: 0 }",
        "has kind KIND_CPU but specifies one or more GPUs",
    ),
    "no instance": ("instance_group { count: -1 }", "instance_group[0].count: is not from 1 to 1024 (got -1)"),
    "accelerator": (
        "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tpu' } } }",
        "unknown Execution Accelerator 'tpu' is requested",
    ),
    "precision": (
        "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' "
        "parameters { key: 'precision_mode' value: 'FP4' } } } }",
        "unsupported precision mode 'FP4' is requested",
    ),
    "graph level": ("optimization { graph { level: 3 } }", "optimization.graph.level: is not -1, 0, 1 or 2 (got 3)"),
    "parameter": (
        "parameters { key: 'execution_mode' value { string_value: '2' } }",
        "parameters['execution_mode']: is not 0 (sequential) or 1 (parallel) (got '2')",
    ),
    "filename": ("default_model_filename: '../m.onnx'", "leaves the version's directory (got '../m.onnx')"),
    "absolute filename": ("default_model_filename: '/m.onnx'", "leaves the version's directory (got '/m.onnx')"),
    "labels outside": (
        "output { name: 'y' data_type: TYPE_FP32 dims: 1 label_filename: 'a/../../labels.txt' }",
        "output 'y' label_filename: leaves the model's directory (got 'a/../../labels.txt')",
    ),
    "metric tag": (
        "metric_tags { key: 'a-b' value: 'x' }",
        "metric_tags['a-b']: cannot be a label of metrics (got 'x')",
    ),
    "reserved metric tag": ("metric_tags { key: '_a' value: 'x' }", "metric_tags['_a']: cannot be a label of metrics"),
    "long metric tag": (
        "metric_tags { key: 'a' value: '" + "x" * 257 + "' }",
        "metric_tags['a']: cannot be a label of metrics",
    ),
    "many metric tags": (
        "".join(f"metric_tags {{ key: 'k{number}' value: '' }} " for number in range(33)),
        "metric_tags: has more than 32 entries (got 33)",
    ),
    "version zero": ("version_policy { specific { versions: 0 } }", "names what is no version (got [0])"),
    "warm-up file": (
        "model_warmup { name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 1 input_data_file: '../x' } } }",
        "leaves the directory 'warmup' (got '../x')",
    ),
    "warm-up without data": (
        "model_warmup { name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 1 } } }",
        "model_warmup 'a' inputs['x']: has no data",
    ),
    "warm-up size": (
        "model_warmup { name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 0 zero_data: true } } }",
        "inputs['x'] dims: must be positive sizes, of one row (got [0])",
    ),
    "warm-up rank": (
        "model_warmup { name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 zero_data: true "
        + "dims: 1 " * 33 + "} } }",
        "inputs['x'] dims: must be positive sizes, of one row (got [1, 1",
    ),
    "warm-up elements": (
        "model_warmup { name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: [ 65536, 65536 ] zero_data: true"
        " } } }",
        "inputs['x'] dims: must be positive sizes, of one row (got [65536, 65536])",
    ),
    "warm-up datatype": (
        "model_warmup { name: 'a' inputs { key: 'x' value { dims: 1 zero_data: true } } }",
        "inputs['x'] data_type: is missing",
    ),
    "warm-up batch": (
        "max_batch_size: 2 model_warmup { name: 'a' batch_size: 3 inputs { key: 'x' value { data_type: TYPE_FP32 "
        "dims: 1 zero_data: true } } }",
        "model_warmup 'a' batch_size: is above max_batch_size (got 3); write 2",
    ),
    "no GPU": ("instance_group { gpus: [ 0, 1000 ] }", "instance_group[0].gpus: names what is no GPU (got [0, 1000])"),
    "decoupled": ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled: a model that"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_served_is_refused_by_file_field_and_remedy(text: str, problem: str) -> None:
    said = refusal(text)
    assert said.startswith(f"{SOURCE}: ")
    assert problem in said
    assert "; " in said
    assert "\n" not in said


def test_all_problems_are_told_at_once() -> None:
    lines = refusal(
        "name: 'n' max_batch_size: -1 platform: 'onnxruntime' model_repository_agents { agents { name: 'a' } }"
    ).splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"{SOURCE}: ") for line in lines)


def test_fields_that_are_passed_over_are_named_in_one_warning() -> None:
    warning = read(
        "model_metrics { metric_control { metric_identifier { family: 'a' } } } "
        "parameters { key: 'other' value { string_value: '1' } } "
        "output { name: 'y' data_type: TYPE_FP32 dims: 1 label_filename: 'labels.txt' } "
        "metric_tags { key: 'region' value: 'eu' } "
        "model_transaction_policy { decoupled: false }"
    ).warning
    assert warning.startswith(f"'{SOURCE}': ")
    for path in (
        "model_metrics",
        "parameters['other']",
    ):
        assert path in warning
    for path in ("decoupled", "label_filename", "metric_tags"):
        assert path not in warning


def test_what_triton_itself_prints_gives_no_warning() -> None:
    text = """
    name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime"
    version_policy { latest { num_versions: 1 } }
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: 4 format: FORMAT_NCHW }
    output { name: "y" data_type: TYPE_FP32 dims: 4 }
    instance_group { name: "m" kind: KIND_CPU count: 2 }
    default_model_filename: "model.onnx"
    dynamic_batching { preferred_batch_size: 4 preserve_ordering: true }
    optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } priority: PRIORITY_MAX }
    """
    assert read(text).warning == ""


def test_fields_that_depend_on_the_backend_are_left_to_another_backends_kind() -> None:
    agents = "model_repository_agents { agents { name: 'a' } }"
    text = f"max_batch_size: 4 {agents} optimization {{ graph {{ level: 9 }} }} parameters {{ key: 'own' }}"
    configuration = read(f"backend: 'python' {text}")
    assert (configuration.settings.backend, configuration.settings.batch_size) == ("python", 4)
    assert configuration.warning == ""
    assert len(refusal(f"backend: 'onnxruntime' {text}").splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("", ""),
        ("backend: 'own'", "own"),
        ("platform: 'onnxruntime_onnx'", "onnxruntime"),
        ("platform: 'pytorch_libtorch' backend: 'pytorch'", "pytorch"),
    ],
)
def test_the_backend_is_named_by_backend_or_platform(text: str, backend: str) -> None:
    assert read(text).settings.backend == backend


@pytest.mark.parametrize("name", ['name: "{}"\n', "name: '{}'  \n", "", 'max_batch_size: 8 name: "{}"\n'])
def test_models_whose_files_differ_in_the_name_alone_share_what_these_come_to(tmp_path: Path, name: str) -> None:
    found = {}
    for model in ("a", "b"):
        (tmp_path / model).mkdir()
        text = name.format(model) + INPUT + OUTPUT + "instance_group { count: 2 }\ncc_model_filenames { }\n"
        (tmp_path / model / "config.pbtxt").write_text(text)
        one = found[model] = read_triton_configuration(tmp_path / model)
        assert one is not None
        assert one == triton_configuration(parse_pbtxt(text, one.source), model, one.source)
        assert (one.source, one.declared.model) == (tmp_path / model / "config.pbtxt", model)
        assert one.given.name == (model if name else "")
        assert str(one.source) in one.warning
    one, other = found.values()
    assert one is not None
    assert other is not None
    if not name.startswith("max"):
        assert one.settings is other.settings


def test_a_name_that_is_not_the_models_is_refused_though_the_rest_is_known(tmp_path: Path) -> None:
    for model in ("a", "b"):
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.pbtxt").write_text('name: "a"\n' + INPUT)
    assert read_triton_configuration(tmp_path / "a") is not None
    with pytest.raises(ConfigurationError, match="unexpected directory name 'b' for model 'a'"):
        read_triton_configuration(tmp_path / "b")
    (tmp_path / "a" / "config.pbtxt").write_text('name: "a"\nname: "a"\n' + INPUT)
    with pytest.raises(ConfigurationError, match="name"):
        read_triton_configuration(tmp_path / "a")
