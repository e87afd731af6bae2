"""Backends of packages: chosen, imported, loaded and refused; each fails alone, and says why."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backends.plugins.loading import all_kinds, inspect, load, refused
from tests.backends.plugins.packages import (
    ROOT,
    documented_decoupled,
    documented_example,
    install,
    install_text,
    write_model,
)
from tests.waiting import wait_until
from toutates.backends.plugins.catalogue import SHIPPED, Catalogue, Shipped
from toutates.backends.plugins.kind import PluginKind
from toutates.command.main import main
from toutates.models.config.other_kinds import EXTRAS
from toutates.system.errors import ConfigurationError, ModelLoadError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in set(sys.modules) - before:
        if name.endswith(("_module", "_backend")):
            del sys.modules[name]
    importlib.invalidate_caches()


def test_the_documented_example_is_served_and_inspected(site: Path, tmp_path: Path) -> None:
    name = documented_example(site)
    config = f'backend: "{name}" max_batch_size: 4 instance_group {{ count: 2 kind: KIND_CPU }}'
    write_model(tmp_path, "m", config, {"factors.npy": np.array([1.0, 2.0, 3.0])})
    served = load(tmp_path)
    assert served.config.backend == "scale"
    assert served.config.default_model_filename == "factors.npy"
    assert [list(tensor.dims) for tensor in served.config.input] == [[3]]
    assert served.servable.statistics().executors == 2
    assert inspect(tmp_path).signature == served.signature


def test_a_decoupled_model_is_shown_as_such_and_not_warmed_up(site: Path, tmp_path: Path) -> None:
    name = documented_decoupled(site)
    version = write_model(tmp_path, "m", f'backend: "{name}" model_transaction_policy {{ decoupled: true }}')
    assert load(tmp_path).decoupled
    found = inspect(tmp_path)
    assert found.member.decoupled
    assert found.config().model_transaction_policy.decoupled
    sample = 'key: "start" value { data_type: TYPE_INT32 dims: 1 zero_data: true }'
    with (version.parent / "config.pbtxt").open("a") as file:
        file.write(f'model_warmup {{ name: "w" batch_size: 1 inputs {{ {sample} }} }}')
    assert "model_warmup: a decoupled model of the backend 'countdown' is not warmed up" in refused(tmp_path)


def test_a_backend_whose_package_is_not_installed_tells_the_extra(tmp_path: Path) -> None:
    catalogue = Catalogue({"lightgbm": Shipped("m:C", "lightgbm_not_here", "lightgbm", ("model.txt",))})
    write_model(tmp_path, "m", "", {"model.txt": b""})
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path, kinds=[PluginKind(catalogue)])
    said = "the backend 'lightgbm' needs the package lightgbm_not_here, which is not installed; pip install "
    assert said in str(caught.value)
    write_model(tmp_path, "n", 'backend: "own"')
    with pytest.raises(ConfigurationError) as refusal:
        load(tmp_path, "n", [PluginKind(catalogue)])
    assert "there is no backend of this name (got 'own'); write one of" in str(refusal.value)
    assert "or install one of lightgbm, openvino" in str(refusal.value)


def test_every_extra_of_a_backend_is_named_where_it_is_missing_and_can_be_installed() -> None:
    extras = {own.extra for own in SHIPPED.values() if own.extra}
    assert set(EXTRAS) == extras
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras <= project["optional-dependencies"].keys()
    page = (ROOT / "docs" / "backends.md").read_text()
    for name, own in SHIPPED.items():
        assert f"| `{name}` |" in page
        assert all(f"`{file}`" in page for file in own.files)


@pytest.mark.parametrize("fails", [False, True], ids=["read", "half written"])
@pytest.mark.parametrize("changes", [0, 2, 3])
def test_a_file_that_changes_while_it_is_read_is_read_again(
    site: Path, tmp_path: Path, changes: int, fails: bool
) -> None:
    body = f"""
    filenames = ("model.changing",)
    times = [0]

    def load(self, source):
        self.times[0] += 1
        if self.times[0] <= {changes}:
            source.path.write_bytes(b"new" * self.times[0])
            if {fails}:
                raise ValueError("half")
        return super().load(source)
"""
    install(site, "changing", body)
    write_model(tmp_path, "m", "", {"model.changing": b""})
    if changes < 3:
        assert load(tmp_path).config.backend == "changing"
    else:
        assert "model.changing' has changed while it was read, 3 times" in refused(tmp_path)


def test_a_file_called_after_a_backend_chooses_it(site: Path, tmp_path: Path) -> None:
    install(site, "own", '    filenames = ("model.own",)')
    write_model(tmp_path, "m", "", {"model.own": b""})
    assert load(tmp_path).config.backend == "own"
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"no graph")
    assert "onnxruntime cannot load 'model.onnx'" in refused(tmp_path)


def test_a_package_is_imported_only_for_its_own_models(site: Path, tmp_path: Path) -> None:
    install(site, "own", "")
    install(site, "other", "", head="raise RuntimeError('was imported')")
    write_model(tmp_path, "m", 'backend: "own"')
    load(tmp_path)
    assert "own_module" in sys.modules
    assert "other_module" not in sys.modules


def test_what_a_server_has_of_its_own_is_not_replaced(site: Path, tmp_path: Path) -> None:
    install_text(
        site, "bad_module", "raise RuntimeError", {"supertensor": "bad_module:X", "onnxruntime": "bad_module:X"}
    )
    write_model(tmp_path, "m", 'backend: "onnxruntime"', {"model.onnx": b"no graph"})
    assert "onnxruntime cannot load" in refused(tmp_path)


#: By what is bad: the line about the version, or one at the head of the module; and what is said of it.
BAD_MODULES = {
    "raises": ("interface = 1", "1 / 0", "of the package bad-module cannot be imported: ZeroDivisionError"),
    "exits": ("interface = 1", "raise SystemExit(3)", "cannot be imported: SystemExit: 3 (bad_module.py:4)"),
    "no version": ("pass", "", "has to write `interface = 1` in the class"),
    "newer": ("interface = 2", "", "for version 2 of the interface, and this server has 1; install a newer Toutates"),
    "older": ("interface = -1", "", "this server has 1; install a newer release of it"),
}


@pytest.mark.parametrize(("interface", "head", "said"), BAD_MODULES.values(), ids=BAD_MODULES.keys())
def test_a_package_that_does_not_fit_is_refused(
    site: Path, tmp_path: Path, interface: str, head: str, said: str
) -> None:
    install(site, "bad", "", interface=interface, head=head)
    write_model(tmp_path, "m", 'backend: "bad"')
    assert said in refused(tmp_path)


BAD_LOADS = {
    "raises": ("raise KeyError('k')", "cannot load the model: KeyError: 'k' (bad_module.py:"),
    "exits": ("raise SystemExit", "cannot load the model: SystemExit"),
    "returns nothing": ("pass", "returned NoneType from load, expected"),
    "no outputs": ("return Tensors([Tensor('x', 'FP32', (-1,))], [])", "has no output for this model"),
    "unknown datatype": (
        "return Tensors([Tensor('x', 'float', (-1,))], [Tensor('y', 'FP32', (-1,))])",
        "has an input 'x' that has the datatype 'float', expected one of BOOL",
    ),
    "bad shape": (
        "return Tensors([Tensor('x', 'FP32', (-1, None))], [Tensor('y', 'FP32', (-1,))])",
        "has the shape [-1, None], expected sizes",
    ),
    "same name": (
        "return Tensors([Tensor('x', 'FP32', (-1,))] * 2, [])",
        "has an input 'x' that needs a name of its own",
    ),
    "no tensors": ("return Tensors(['x'], ['y'])", "has an input that is str, expected Tensor"),
    "parameter": (
        "source.integer('threads', 1, 1, 8)",
        "parameters['threads']: is not a whole number from 1 to 8 (got 'many'); write such as 1",
    ),
}


@pytest.mark.parametrize(("line", "said"), BAD_LOADS.values(), ids=BAD_LOADS.keys())
def test_a_load_that_fails_tells_the_reason(site: Path, tmp_path: Path, line: str, said: str) -> None:
    install(site, "bad", f"    def load(self, source): {line}")
    write_model(tmp_path, "m", 'backend: "bad" parameters { key: "threads" value { string_value: "many" } }')
    assert said in refused(tmp_path)


def test_instances_and_files_that_are_not_there_are_told(site: Path, tmp_path: Path) -> None:
    install(site, "bad", "    def instance(self, number, device): return None")
    write_model(tmp_path, "m", 'backend: "bad"')
    assert "has instances that cannot run: AttributeError" in refused(tmp_path)
    install(site, "lost", "    filenames = ('a.bin', 'b.bin')")
    write_model(tmp_path, "n", 'backend: "lost"')
    assert refused(tmp_path, "n").startswith(f"unable to find '{tmp_path}/n/1/a.bin' (nor b.bin): No such file")


def test_an_entry_point_that_is_no_backend_is_refused(site: Path, tmp_path: Path) -> None:
    install_text(site, "bad_module", "X = 3", {"bad": "bad_module:X", "gone": "bad_module:Y"})
    write_model(tmp_path, "m", 'backend: "bad"')
    assert "is no subclass of toutates.backends.interface.Backend" in refused(tmp_path)
    write_model(tmp_path, "n", 'backend: "gone"')
    assert "cannot be imported: AttributeError" in refused(tmp_path, "n")


def test_a_backend_that_hangs_in_load_is_given_up_and_freed_later(site: Path, tmp_path: Path) -> None:
    body = """
    def load(self, source):
        import threading
        if not hasattr(type(self), "hold"):
            type(self).hold, type(self).freed = threading.Event(), threading.Event()
        type(self).hold.wait()
        return super().load(source)

    def free(self):
        type(self).freed.set()
"""
    install(site, "slow", body)
    write_model(
        tmp_path, "m", 'backend: "slow" parameters { key: "toutates.load_timeout_s" value { string_value: "1" } }'
    )
    kinds = all_kinds()

    with pytest.raises(ModelLoadError, match="has not loaded the model within 1 s, and its thread was left to itself"):
        load(tmp_path, kinds=kinds)
    tried = sys.modules["slow_module"].Tried
    assert not tried.freed.is_set()
    with pytest.raises(ModelLoadError, match="is still busy with the last load of this version"):
        load(tmp_path, kinds=kinds)
    tried.hold.set()
    assert tried.freed.wait(120)
    assert load(tmp_path, kinds=kinds).config.backend == "slow"


def test_a_backend_that_hangs_in_its_first_run_is_given_up(site: Path, tmp_path: Path) -> None:
    body = """
    def run(self, inputs):
        import threading
        type(self).hold = threading.Event()
        type(self).hold.wait()
        return super().run(inputs)
"""
    install(site, "slow", body)
    write_model(
        tmp_path, "m", 'backend: "slow" parameters { key: "toutates.load_timeout_s" value { string_value: "1" } }'
    )
    assert "has not answered its first run within 1 s" in refused(tmp_path)
    sys.modules["slow_module"].Tried.hold.set()


def test_what_was_loaded_is_freed_where_the_configuration_contradicts_it(site: Path, tmp_path: Path) -> None:
    install(site, "own", "    freed = 0\n    def free(self): type(self).freed += 1")
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 2 }'
    write_model(tmp_path, "m", f'backend: "own" max_batch_size: 4 {tensors}')
    assert "input 'x' dims: model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,2])" in refused(tmp_path)
    assert sys.modules["own_module"].Tried.freed == 1


def test_an_inspected_version_is_freed_once_for_all_instances(site: Path, tmp_path: Path) -> None:
    install(site, "own", "    freed = 0\n    def free(self): type(self).freed += 1")
    write_model(tmp_path, "m", 'backend: "own" instance_group { count: 3 kind: KIND_CPU }')
    inspect(tmp_path)
    wait_until(lambda: sys.modules["own_module"].Tried.freed == 1)


REFUSED = {
    "GPU": ("instance_group { kind: KIND_GPU gpus: [ 0 ] }", "instance_group: the backend 'own' runs on the CPU only"),
    "iterative": ("sequence_batching { iterative_sequence: true }", "only a Python model can ask for a request once"),
    "decoupled": (
        "model_transaction_policy { decoupled: true }",
        "model_transaction_policy.decoupled: the backend 'own' gives one response per request of this model",
    ),
    "pinned": (
        'parameters { key: "toutates.allocator" value { string_value: "cuda_pinned" } }',
        "allocator: is for ONNX models only",
    ),
}


@pytest.mark.parametrize(("config", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_backend_of_a_package_has_is_refused(site: Path, tmp_path: Path, config: str, said: str) -> None:
    install(site, "own", "")
    write_model(tmp_path, "m", f'backend: "own" max_batch_size: 4 {config}')
    assert said in refused(tmp_path)


def test_fields_and_parameters_without_effect_are_named_in_warnings(site: Path, tmp_path: Path) -> None:
    install(
        site,
        "own",
        "    def load(self, source):\n        source.flag('known', True)\n        return super().load(source)",
    )
    config = "".join(f'parameters {{ key: "{key}" value {{ string_value: "0" }} }}' for key in ("known", "typo"))
    write_model(
        tmp_path,
        "m",
        f'backend: "own" {config} optimization {{ graph {{ level: 1 }} }} '
        'model_operations { op_library_filename: "a" }',
    )
    first, second = inspect(tmp_path).warnings
    assert "model_operations.op_library_filename (of ONNX models only)" in first
    assert "optimization (of ONNX models only" in first
    assert "the backend 'own' has no parameters typo" in second


@pytest.mark.parametrize("form", ["yaml", "pbtxt"])
def test_config_prints_what_gives_the_same_again(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    install(
        site, "own", "    def load(self, source):\n        source.integer('k', 1)\n        return super().load(source)"
    )
    config = 'backend: "own" max_batch_size: 4 parameters { key: "k" value { string_value: "2" } }'
    version = write_model(tmp_path, "m", config)
    before = inspect(tmp_path)
    assert main(["config", str(tmp_path / "m"), "--format", form]) == 0
    printed = capsys.readouterr().out
    (version / "config.yaml" if form == "yaml" else tmp_path / "m" / "config.pbtxt").write_text(printed)
    after = inspect(tmp_path)
    assert after.settings == before.settings
    assert after.signature == before.signature
    assert after.settings.backend == "own"


def test_check_tells_problems_and_facts_of_any_kind(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "own", "")
    install(site, "bad", "    def load(self, source): raise ValueError('cut short')")
    repository = tmp_path / "models"
    write_model(repository, "good", 'backend: "own" max_batch_size: 4')
    write_model(repository, "broken", 'backend: "bad"')
    write_model(repository, "unknown", 'backend: "owwn"')
    assert main(["check", str(repository)]) == 1
    captured = capsys.readouterr()
    said = captured.out + captured.err
    assert "good 1: batched, SuperTensor" in said
    assert "the backend 'bad' cannot load the model: ValueError: cut short" in said
    assert "there is no backend of this name (got 'owwn'); did you mean 'own'?" in said


@pytest.mark.parametrize(
    ("said", "run", "joins"),
    [
        ("True", "inputs['x'].cumsum(axis=0)", True),
        ("False", "2 * inputs['x']", False),
        ("None", "2 * inputs['x']", True),
        ("None", "inputs['x'].cumsum(axis=0)", False),
    ],
)
def test_a_backend_says_whether_rows_depend_on_each_other_or_it_is_found_out(
    site: Path, tmp_path: Path, said: str, run: str, joins: bool, caplog: pytest.LogCaptureFixture
) -> None:
    body = f"""
    def load(self, source):
        tensors = [Tensor("x", "FP32", (-1, 2))], [Tensor("y", "FP32", (-1, 2))]
        return Tensors(*tensors, independent_rows={said})

    def run(self, inputs):
        return {{"y": {run}}}
"""
    install(site, "own", body)
    write_model(tmp_path, "m", 'backend: "own" max_batch_size: 8')
    assert load(tmp_path).servable.joins is joins
    is_found = said == "None" and not joins
    assert ("rows depend on each other" in caplog.text) is is_found
    assert any("rows depend on each other" in text for text in inspect(tmp_path).warnings) is is_found
