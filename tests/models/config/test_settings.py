"""config.yaml: what is read, and that everything wrong with it is named with its file, key, value and remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.immutable import mutable_parts
from toutates.models.config.settings import (
    ModelSettings,
    ProfilingSettings,
    RateLimit,
    ResourceNeed,
    SessionSettings,
    WarmupInput,
    WarmupSample,
    load_settings,
)
from toutates.system.errors import ConfigurationError

REQUIRED = {"backend": "supertensor", "batch_size": "8", "capacity": "4", "num_executors": "2", "allocator": "cpu"}

FULL = """\
# A model of two inputs.
backend: supertensor
batch_size: 256
capacity: 64
num_executors: 6
allocator: cuda_pinned
input_shapes:
  pf_points: [-1, 2, 50]
  0: [-1]
output_shapes: {softmax: [-1, 8]}
profiling:
  file_prefix: /tmp/profile
  stop_after_batches: 1000
"""


def config(extra: str = "", **changes: str | None) -> str:
    """The smallest valid file with some keys changed (None leaves one out) and more lines behind it."""
    lines = [f"{key}: {value}\n" for key, value in (REQUIRED | changes).items() if value is not None]
    return "".join(lines) + extra


def load(folder: Path, text: str | bytes) -> ModelSettings:
    (folder / "config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    settings = load_settings(folder)
    assert settings is not None
    return settings


def test_a_version_without_config_yaml_has_the_defaults(tmp_path: Path) -> None:
    assert load_settings(tmp_path) is None
    settings = ModelSettings()
    assert settings == ModelSettings(batch_size=64, capacity=16, num_executors=1, allocator="cpu")
    assert dict(settings.input_shapes) == dict(settings.output_shapes) == {}
    assert settings.profiling is None


def test_every_key_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, FULL) == ModelSettings(
        batch_size=256,
        capacity=64,
        num_executors=6,
        allocator="cuda_pinned",
        input_shapes={"pf_points": (-1, 2, 50), "0": (-1,)},
        output_shapes={"softmax": (-1, 8)},
        profiling=ProfilingSettings("/tmp/profile", 1000),
    )


MORE = """\
capacity_bytes: 1000000
max_queue_size: 100
batching: false
max_queue_delay_us: 500
preferred_batch_sizes: [2, 4]
preserve_ordering: true
input_wire_shapes: {x: [-1, 4]}
output_wire_shapes: {y: [-1, 1]}
required_inputs: [w, 0]
outputs: [y]
model_filename: sub/graph.onnx
devices: [cpu, auto, "gpu:1"]
accelerators: {tensorrt: {trt_fp16_enable: 1}, cuda: {arena_extend_strategy: kSameAsRequested}}
session:
  intra_threads: 4
  inter_threads: 2
  execution_mode: sequential
  graph_level: basic
  memory_arena: false
  memory_pattern: false
  arena_shrinkage: cpu:0
  device_allocator_for_initializers: true
warmup:
- name: typical
  batch_size: 8
  count: 3
  inputs: {x: {datatype: FP32, shape: [4], data: random}, z: {datatype: BYTES, shape: [], file: a/b.raw}}
- inputs: {x: {datatype: BOOL, shape: [4]}}
"""


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        config(MORE),
        config(),
        config("padding: {inputs: {x: {axis: 1}}}"),
        config("ragged: {inputs: {x: [-1, -1]}}"),
        config("priority_levels: 2\ndefault_priority: 2\npriority_queues: {1: {max_queue_size: 4}}"),
    ],
)
def test_what_versions_share_cannot_be_changed_in_place(tmp_path: Path, text: str) -> None:
    settings = load(tmp_path, text)
    assert load(tmp_path, text) is settings
    assert [*mutable_parts(settings)] == []


def test_every_optional_key_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, config(MORE)) == ModelSettings(
        batch_size=8,
        capacity=4,
        capacity_bytes=1_000_000,
        max_queue_size=100,
        num_executors=2,
        batching=False,
        max_queue_delay_us=500,
        preferred_batch_sizes=(2, 4),
        preserve_ordering=True,
        input_wire_shapes={"x": (-1, 4)},
        output_wire_shapes={"y": (-1, 1)},
        required_inputs=("w", "0"),
        outputs=("y",),
        model_filename="sub/graph.onnx",
        devices=("cpu", "auto", "gpu:1"),
        accelerators={"tensorrt": {"trt_fp16_enable": "1"}, "cuda": {"arena_extend_strategy": "kSameAsRequested"}},
        session=SessionSettings(4, 2, "sequential", "basic", False, False, "cpu:0", True),
        warmup=(
            WarmupSample(
                "typical",
                {"x": WarmupInput("FP32", (4,), "random"), "z": WarmupInput("BYTES", (), "file", "a/b.raw")},
                batch_size=8,
                count=3,
            ),
            WarmupSample("sample 1", {"x": WarmupInput("BOOL", (4,))}),
        ),
    )


def test_executors_take_their_devices_in_turn() -> None:
    settings = ModelSettings(num_executors=3, devices=("cpu", "gpu:1"))
    assert [settings.device(number) for number in range(3)] == ["cpu", "gpu:1", "cpu"]
    assert ModelSettings().device(5) == "auto"


def test_a_target_and_rate_limits_are_read(tmp_path: Path) -> None:
    text = """\
latency_target_ms: 12.5
rate_limits:
- {priority: 2, resources: [{name: R1, count: 4}, {name: R2, global: true}]}
- {}
"""
    limit = RateLimit((ResourceNeed("R1", 4), ResourceNeed("R2", 1, is_global=True)), 2)
    settings = load(tmp_path, config(text))
    assert (settings.latency_target_ms, settings.rate_limits) == (12.5, (limit, RateLimit()))
    assert load(tmp_path, config("latency_target_ms: 0\n")).latency_target_ms == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("latency_target_ms: 0.001", "latency_target_ms: is below 0.01"),
        ("latency_target_ms: -1", "latency_target_ms: is not a number from 0 to 3.6"),
        ("latency_target_ms: soon", "latency_target_ms: is not a number"),
        ("rate_limits: {priority: 1}", "rate_limits: is not a list of mappings"),
        ("rate_limits: [{priority: -1}]", r"rate_limits\[0\].priority: is not an integer"),
        ("rate_limits: [{resources: [{name: r}, {name: r}]}]", r"rate_limits\[0\].resources\[1\].name: is there twice"),
        ("rate_limits: [{resources: [{count: 1}]}]", r"resources\[0\].name: required key is missing; add `name: r`"),
        ("rate_limits: [{resources: [{name: r, count: 0}]}]", r"resources\[0\].count: is not an integer from 1"),
    ],
)
def test_targets_and_rate_limits_that_cannot_be_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load(tmp_path, config(text + "\n"))


@pytest.mark.parametrize(
    ("text", "profiling"),
    [
        pytest.param("profiling: {}\n", ProfilingSettings("ort_profile", None), id="all defaults"),
        pytest.param("profiling: {stop_after_batches: 3}\n", ProfilingSettings("ort_profile", 3), id="one given"),
    ],
)
def test_profiling_has_its_own_defaults(tmp_path: Path, text: str, profiling: ProfilingSettings) -> None:
    assert load(tmp_path, config(text)).profiling == profiling


def test_the_largest_values_are_accepted(tmp_path: Path) -> None:
    settings = load(tmp_path, config(batch_size="1048576", capacity="65536", num_executors="1024"))
    assert (settings.batch_size, settings.capacity, settings.num_executors) == (2**20, 2**16, 2**10)


#: Keys with a whole number: how each is written, and the least and the greatest number.
INTEGERS = {
    "batch_size": (1, 2**20, "batch_size: {}"),
    "capacity_bytes": (1, 2**50, "capacity_bytes: {}"),
    "max_queue_size": (0, 2**32 - 1, "max_queue_size: {}"),
    "max_queue_delay_us": (0, 60_000_000, "max_queue_delay_us: {}"),
    "stop_after_batches": (1, 2**31 - 1, "profiling: {{stop_after_batches: {}}}"),
    "intra_threads": (1, 1_024, "session: {{intra_threads: {}}}"),
    "inter_threads": (1, 1_024, "session: {{inter_threads: {}}}"),
    "warm-up batch_size": (1, 2**20, "warmup: [{{inputs: {{}}, batch_size: {}}}]"),
    "warm-up count": (1, 10**6, "warmup: [{{inputs: {{}}, count: {}}}]"),
    "dimension": (1, 2**31 - 1, "input_shapes: {{x: [{}]}}"),
}


@pytest.mark.parametrize(("least", "most", "line"), INTEGERS.values(), ids=INTEGERS.keys())
def test_whole_numbers_have_bounds(tmp_path: Path, least: int, most: int, line: str) -> None:
    def text(number: int) -> str:
        own = line.format(number)
        return config(own + "\n") if not own.startswith("batch_size") else config(batch_size=str(number))

    for number in (least, most):
        load(tmp_path, text(number))
    for number in (least - 1, most + 1):
        if line.startswith("input_shapes") and number == 0:
            number = -2
        with pytest.raises(ConfigurationError, match=r"is not an? (integer from|list of at most)"):
            load(tmp_path, text(number))


def test_zero_is_no_bound_of_the_queue_and_no_delay(tmp_path: Path) -> None:
    settings = load(tmp_path, config("max_queue_size: 0\nmax_queue_delay_us: 0\nbatching: true\n"))
    assert (settings.max_queue_size, settings.max_queue_delay_us, settings.batching) == (0, 0, True)
    assert load(tmp_path, config("preferred_batch_sizes: [8]\n")).preferred_batch_sizes == (8,)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    assert load(tmp_path, b"\xef\xbb\xbf" + config().encode()).batch_size == 8


def test_shapes_cannot_be_changed_after_reading(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        load(tmp_path, FULL).input_shapes["pf_points"] = (1,)  # type: ignore[index]


# Each row: the file, then what its error must say: the key, the value as shown, and what to do.
BAD = {
    "another backend": (config(backend="triton"), "backend", "'triton'", "write `backend: supertensor`"),
    "unknown allocator": (config(allocator="gpu"), "allocator", "'gpu'", "cpu or cuda_pinned"),
    "allocator a list": (config(allocator="[cpu]"), "allocator", "['cpu']", "cpu or cuda_pinned"),
    "misspelled key": (config("num_executor: 1\n"), "num_executor", "unknown key", "did you mean `num_executors`?"),
    "unrelated key": (config("zzz: 1\n"), "zzz", "unknown key", "known keys: accelerators, allocator, "),
    "empty key": (config("'': 1\n"), "''", "unknown key", "known keys: accelerators, allocator, "),
    "merge key": (config("<<: {capacity: 1}\n"), "<<", "unknown key", "known keys"),
    "quoted number": (config(batch_size="'64'"), "batch_size", "'64'", "without quotes, such as `batch_size: 64`"),
    "true for a number": (config(capacity="true"), "capacity", "True", "from 1 to 65536"),
    "fraction": (config(num_executors="1.5"), "num_executors", "1.5", "such as `num_executors: 1`"),
    "nothing": (config(capacity=""), "capacity", "null", "such as `capacity: 16`"),
    "zero": (config(batch_size="0"), "batch_size", "0", "from 1 to 1048576"),
    "negative": (config(capacity="-4"), "capacity", "-4", "from 1 to 65536"),
    "absurd batch_size": (config(batch_size="1048577"), "batch_size", "1048577", "from 1 to 1048576"),
    "absurd capacity": (config(capacity="65537"), "capacity", "65537", "from 1 to 65536"),
    "absurd num_executors": (config(num_executors="1025"), "num_executors", "1025", "from 1 to 1024"),
    "list for a number": (config(batch_size="[1]"), "batch_size", "[1]", "such as `batch_size: 64`"),
    "shapes no mapping": (config("input_shapes: [1]\n"), "input_shapes", "[1]", "{name: [-1, 8]}"),
    "shape no list": (config("input_shapes: {x: 3}\n"), "input_shapes.x", "3", "such as `x: [-1, 8]`"),
    "dimension zero": (config("input_shapes: {x: [-1, 0]}\n"), "input_shapes.x", "[-1, 0]", "write -1"),
    "dimension -2": (config("output_shapes: {y: [-2]}\n"), "output_shapes.y", "[-2]", "positive sizes"),
    "dimension true": (config("input_shapes: {x: [-1, true]}\n"), "input_shapes.x", "[-1, True]", "positive sizes"),
    "dimension text": (config("input_shapes: {x: [N, 2]}\n"), "input_shapes.x", "['N', 2]", "-1 for the batch"),
    "dimension absurd": (config("input_shapes: {x: [2147483648]}\n"), "input_shapes.x", "2147483648", "-1 or from 1"),
    "too many dimensions": (config(f"input_shapes: {{x: {[1] * 33}}}\n"), "input_shapes.x", "[1, 1", "at most 32"),
    "profiling no mapping": (config("profiling: true\n"), "profiling", "True", "file_prefix: ort_profile"),
    "profiling nothing": (config("profiling:\n"), "profiling", "null", "leave the key out"),
    "empty prefix": (config("profiling: {file_prefix: ''}\n"), "profiling.file_prefix", "''", "ort_profile"),
    "number as prefix": (config("profiling: {file_prefix: 3}\n"), "profiling.file_prefix", "3", "ort_profile"),
    "stop after nothing": (
        config("profiling: {stop_after_batches: 0}\n"), "profiling.stop_after_batches", "0", "from 1 to",
    ),
    "batching no flag": (config("batching: 1\n"), "batching", "1", "write `batching: true` or `batching: false`"),
    "negative delay": (config("max_queue_delay_us: -1\n"), "max_queue_delay_us", "-1", "from 0 to 60000000"),
    "preferred above": (
        config("preferred_batch_sizes: [4, 9]\n"), "preferred_batch_sizes", "9", "write sizes of at most 8",
    ),
    "preferred no list": (config("preferred_batch_sizes: 4\n"), "preferred_batch_sizes", "4", "[4, 8]"),
    "preferred no number": (config("preferred_batch_sizes: [a]\n"), "preferred_batch_sizes", "['a']", "[4, 8]"),
    "required no list": (config("required_inputs: x\n"), "required_inputs", "'x'", "[name]"),
    "empty name": (config("outputs: ['']\n"), "outputs", "['']", "[name]"),
    "filename that leaves": (config("model_filename: ../x\n"), "model_filename", "'../x'", "a plain name"),
    "absolute filename": (config("model_filename: /x\n"), "model_filename", "'/x'", "such as model.onnx"),
    "unknown device": (config("devices: [tpu]\n"), "devices", "['tpu']", "of auto, cpu and gpu:N"),
    "unknown accelerator": (config("accelerators: {tpu: {}}\n"), "accelerators.tpu", "unknown", "tensorrt, cuda"),
    "option no word": (
        config("accelerators: {cuda: {x: [1]}}\n"), "accelerators.cuda.x", "[1]", "write `x: '1'`",
    ),
    "session no mapping": (config("session: 4\n"), "session", "4", "session: {intra_threads: 4}"),
    "misspelled session key": (
        config("session: {intra_thread: 4}\n"), "session.intra_thread", "unknown", "did you mean `intra_threads`?",
    ),
    "unknown mode": (
        config("session: {execution_mode: both}\n"), "session.execution_mode", "'both'", "sequential or parallel",
    ),
    "no threads": (config("session: {intra_threads: 0}\n"), "session.intra_threads", "0", "from 1 to 1024"),
    "warm-up no list": (config("warmup: {x: 1}\n"), "warmup", "{'x': 1}", "warmup: [{name: zeros"),
    "warm-up without inputs": (config("warmup: [{name: a}]\n"), "warmup[0].inputs", "required", "every input"),
    "warm-up of open shape": (
        config("warmup: [{inputs: {x: {datatype: FP32, shape: [-1]}}}]\n"),
        "warmup[0].inputs.x.shape", "[-1]", "the size of each dimension",
    ),
    "warm-up file that leaves": (
        config("warmup: [{inputs: {x: {datatype: FP32, shape: [1], file: ../x}}}]\n"),
        "warmup[0].inputs.x.file", "'../x'", "a plain name",
    ),
    "warm-up of two kinds": (
        config("warmup: [{inputs: {x: {datatype: FP32, shape: [1], file: x, data: zero}}}]\n"),
        "warmup[0].inputs.x.data", "beside `file`", "keep one of them",
    ),
    "misspelled nested key": (
        config("profiling: {prefix: a}\n"), "profiling.prefix", "unknown key", "did you mean `file_prefix`?",
    ),
}  # fmt: skip

# Files that are refused as a whole: what the error says of the place, and what to do.
UNREADABLE = {
    "a list": ("- backend\n", "is not a mapping (got ['backend'])", "write `key: value` lines"),
    "a text": ("x" * 1000, "is not a mapping", "write `key: value` lines"),
    "syntax error": ("backend: supertensor\nbatch_size: [1\n", "line 3", "correct the YAML there"),
    "tab": ("backend: supertensor\n\tbatch_size: 1\n", "line 2, column 1", "correct the YAML there"),
    "two documents": (config("---\n"), "line 6, column 1: expected a single document", "correct the YAML there"),
    "duplicate key": (config("capacity: 5\n"), "line 6, column 1: key 'capacity' is given twice", "correct"),
    "duplicate tensor": (config("input_shapes: {x: [1], x: [1]}\n"), "line 6, column 24: key 'x'", "correct"),
    "key no text": ("? [a]\n: 1\n", "line 1, column 3: a key must be a plain text", "correct"),
    "alias": ("a: &a [1]\nb: [*a, *a]\n", "line 2, column 5: aliases", "write the value out"),
    "alias to itself": ("&a [*a]\n", "line 1, column 5: aliases", "write the value out"),
    "octal": (config(batch_size="010"), "line 2, column 13: '010' is not a plain decimal number", "correct"),
    "sexagesimal": (config(batch_size="1:30"), "line 2, column 13: '1:30' is not", "correct"),
    "very long number": (config(batch_size="9" * 5000), "line 2, column 13: '9999", "correct"),
    "date": (config("x: 2024-99-99\n"), "line 6, column 4: '2024-99-99' is not", "correct"),
    "wrong tag": (config("x: !!float abc\n"), "line 6, column 4: 'abc' is not", "correct"),
    "tag of a Python object": ("!!python/object/apply:os.getcwd []\n", "is not a mapping", "write `key: value`"),
    "nested too deeply": ("[" * 5000, "is nested too deeply", "write `key: value` lines"),
    "control character": ("a: \0\n", "unacceptable character #x0000", "correct the YAML there"),
    "control character in an escape": (config('x: "a\\0"\n'), "line 6, column 4: 'a\\x00' has a character", "correct"),
    "surrogate in a key": (config('"\\ud800": 1\n'), "line 6, column 1: '\\ud800' has a character", "correct"),
    "escape beyond Unicode": (
        'a: "\\U00110000"\n',
        "line 1: an escape \\U stands for no character",
        "correct the YAML there",
    ),
    "not UTF-8": (b"backend: supertensor\n# caf\xe9\n", "line 2: is not UTF-8", "save it as UTF-8"),
    "UTF-16": ("backend: supertensor\n".encode("utf-16"), "line 1: is not UTF-8", "save it as UTF-8"),
    "too large": ("#" * (2**16 + 1), "is larger than 65536 bytes", "keep only the settings in it"),
}


# Pieces that PyYAML treats specially, so that random files reach beyond its first error.
PIECES = [
    "backend: supertensor\n",
    "batch_size: ",
    "1",
    "\n",
    " ",
    "- ",
    "? ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "&a ",
    "*a",
]
PIECES += [
    "!!int ",
    "!!float ",
    "!!null ",
    "!!binary ",
    "!x ",
    "<<",
    "'",
    '"',
    "\\U00110000",
    "|\n",
    "%YAML 1.1\n",
    "---\n",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=20).map("".join))
def test_any_text_gives_settings_or_a_configuration_error_that_can_be_logged(text: str) -> None:
    with TemporaryDirectory() as folder:
        try:
            load(Path(folder), text.encode(errors="surrogatepass"))
        except ConfigurationError as error:
            str(error).encode()


@pytest.mark.parametrize(("text", "key", "value", "remedy"), BAD.values(), ids=BAD.keys())
def test_a_bad_setting_is_refused_by_file_key_value_and_remedy(
    tmp_path: Path, text: str, key: str, value: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'config.yaml'}: {key}: ")
    assert value in said
    assert remedy in said
    assert "\n" not in said


@pytest.mark.parametrize(("text", "problem", "remedy"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_is_no_mapping_is_refused_by_file_place_and_remedy(
    tmp_path: Path, text: str | bytes, problem: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'config.yaml'}: {problem}")
    assert remedy in said
    assert len(said) < 400


def test_all_problems_of_a_file_are_reported_at_once_one_line_each(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, config("typo: 1\n", batch_size="0", allocator="other"))
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["batch_size", "allocator", "typo"]
    assert all(line.startswith(str(tmp_path / "config.yaml")) for line in lines)


@pytest.mark.parametrize("text", ["", "# later\n", "{}\n", "capacity: 16\n", "allocator: cpu\n"])
def test_no_key_is_required(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == ModelSettings()


@pytest.mark.parametrize(
    ("key", "default"),
    [("backend", "supertensor"), ("batch_size", 64), ("capacity", 16), ("num_executors", 1), ("allocator", "cpu")],
)
def test_a_wrong_value_is_refused_with_the_default(tmp_path: Path, key: str, default: object) -> None:
    with pytest.raises(ConfigurationError, match=f"`{key}: {default}`"):
        load(tmp_path, f"{key}: [wrong]\n")


def test_a_flood_of_problems_is_cut_short(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, config("".join(f"{'k' * 500}{i}: 1\n" for i in range(30))))
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("config.yaml: and 20 more")
    assert max(map(len, lines)) < 800


def test_a_long_value_is_cut_short(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, config(batch_size="x" * 10_000))
    assert len(str(caught.value)) < 500


def test_a_directory_named_config_yaml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(ConfigurationError, match=r"config\.yaml: is not a regular file; put a text file there"):
        load_settings(tmp_path)


def test_a_fifo_named_config_yaml_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        load_settings(tmp_path)


def test_a_link_to_nothing_is_refused_rather_than_taken_for_an_absent_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match=r"config\.yaml: is a link to a file that does not exist"):
        load_settings(tmp_path)


def test_a_file_that_cannot_be_opened_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, flags: int) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "config.yaml").write_text(config())
    monkeypatch.setattr(os, "open", refuse)  # file modes do not bind root, whom tests may run as
    with pytest.raises(ConfigurationError, match="cannot be read: Permission denied; make it readable"):
        load_settings(tmp_path)


def test_the_other_usual_suffix_is_refused_rather_than_passed_over(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text(config())
    with pytest.raises(ConfigurationError, match=r"config\.yml: would not be read; rename it to config\.yaml"):
        load_settings(tmp_path)


def test_versions_whose_files_have_the_same_bytes_share_one_record(tmp_path: Path) -> None:
    one, other, third = (tmp_path / name for name in "123")
    for folder, batch_size in ((one, 4), (other, 4), (third, 5)):
        folder.mkdir()
        (folder / "config.yaml").write_text(config(batch_size=str(batch_size)))
    assert load_settings(one) is load_settings(other)
    assert load_settings(one) != load_settings(third)


def test_a_file_that_was_understood_is_refused_where_its_backend_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config())
    load_settings(tmp_path)
    with pytest.raises(ConfigurationError, match="backend"):
        load_settings(tmp_path, ["another"])


def test_a_file_with_a_mistake_is_refused_each_time_for_its_own_path(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(config(batch_size="0"))
        with pytest.raises(ConfigurationError, match=re.escape(str(tmp_path / name))):
            load_settings(tmp_path / name)
