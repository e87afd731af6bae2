"""Where the code of a model runs: a process for each instance, or threads of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from toutates.backends.python.arena import Arena, PoisonedArena
from toutates.backends.python.child import frames
from toutates.backends.python.child.logger import set_sink
from toutates.backends.python.child.metric_table import MetricTable
from toutates.backends.python.child.metrics import set_metric_table
from toutates.backends.python.child.model import Model, describe
from toutates.backends.python.child.pb_utils import set_model_dir
from toutates.backends.python.child.requests import set_caller
from toutates.backends.python.decoupled import DecoupledInstance, DecoupledThreadInstance
from toutates.backends.python.deviations import Deviations
from toutates.backends.python.instance import Limits, PythonInstance
from toutates.backends.python.loads import LoadsModels
from toutates.backends.python.metrics import VersionMetrics
from toutates.backends.python.output import OutputReader, PrintedOutput
from toutates.backends.python.process import Closing, Failed, Interpreter, ModelProcess
from toutates.backends.python.starts import LoadsUnderWay
from toutates.backends.python.thread_caller import ThreadCaller, note_loading
from toutates.backends.python.threaded import ThreadInstance
from toutates.engine.lane import Allocate
from toutates.models.table import ModelTable
from toutates.protocol.signature import Signature
from toutates.system.logs.limit import LineLimit
from toutates.system.memory import available_memory
from toutates.system.poison import current

__all__ = ["Code", "Processes", "Start", "Threads"]


def _where_packages_belong(error: str, python: str) -> str:
    """What to do about a module that is missing, for the end of an error; "" where none is.

    Args:
        error: the text of the model's error.
        python: the interpreter that has to have it.
    """
    if "ModuleNotFoundError: " not in error:
        return ""
    return (
        f"\nPackages that a model imports belong into {python}. Modules of the model's own belong beside its model.py, "
        "or into the model's directory."
    )


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a version.

    Attributes:
        model: the model's name.
        version: its number.
        path: of model.py.
        version_dir, model_dir: where it finds modules of its own.
        limit: of the lines that it logs.
    """

    model: str
    version: int
    path: Path
    version_dir: Path
    model_dir: Path
    limit: LineLimit[str]

    def directories(self) -> list[str]:
        """Where it finds modules of its own, the nearest first."""
        return [str(self.version_dir.absolute()), str(self.model_dir.absolute())]


@dataclass(frozen=True, slots=True)
class Start:
    """What one instance is started with.

    Attributes:
        name: of the instance.
        args: of ``initialize``.
        signature: the model's tensors.
        one_by_one: whether it sees each request alone.
        stacked: whether it sees a batch as one request.
        deviations: of the version.
        decoupled: whether it answers a request any number of times.
    """

    name: str
    args: Mapping[str, str]
    signature: Signature
    one_by_one: bool
    stacked: bool
    deviations: Deviations
    decoupled: bool = False


class Processes:
    """A process for each instance.

    Args:
        code: of the version.
        interpreter: runs it.
        reader: of what processes print.
        limits: see Limits.
        get_table: returns the models that the code may call; None for none.
        loads: loads and unloads models for it; None where nobody does.
        under_way: ends the processes of a load that is under way when the server ends; None for nobody.

    Attributes:
        allocate: makes the buffers of batches, which the processes see as well.
        closing: tells the processes that the server ends.
        metrics: that the code keeps.
    """

    def __init__(
        self,
        code: Code,
        interpreter: Interpreter,
        reader: OutputReader,
        limits: Limits,
        get_table: Callable[[], ModelTable] | None = None,
        loads: LoadsModels | None = None,
        under_way: LoadsUnderWay | None = None,
    ) -> None:
        self._get_table, self._loads = get_table, loads
        self._code, self._interpreter, self._reader, self._limits = code, interpreter, reader, limits
        # Batches within their bounds, and outputs: the bound of the machine. Pages are taken when they are used.
        poison = current()
        self._arena = Arena(available_memory()) if poison is None else PoisonedArena(available_memory(), poison)
        self.closing = Closing()
        self._under_way = LoadsUnderWay() if under_way is None else under_way
        self._under_way.begin(self.closing)
        self.metrics = VersionMetrics()
        self.allocate: Allocate | None = self._arena.allocate
        #: what was started in this load
        self._started: list[ModelProcess] = []

    def complete(self, name: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Start the first instance, and have it complete the configuration; None where it does not do that."""
        first = self._start(name)
        self._started.append(first)
        return self._configure(first, config, complete=True)

    def instances(self, starts: Sequence[Start]) -> list[PythonInstance]:
        """Start the others, which import the model at the same time, and initialize all."""
        self._started += [self._start(start.name) for start in starts[1:]]
        found = []
        for process, start in zip(self._started, starts, strict=True):
            self._initialize(process, start, configured=process is self._started[0])
            again = partial(self._start_again, start)
            kind = DecoupledInstance if start.decoupled else PythonInstance
            found.append(
                kind(
                    start.name,
                    start.signature,
                    self._code.model,
                    self._arena,
                    process,
                    again,
                    self._limits,
                    stacked=start.stacked,
                    deviations=start.deviations,
                    get_table=self._get_table,
                    loads=self._loads,
                )
            )
        return found

    def remedy_for(self, error: str) -> str:
        """What to do about an error of the model's code, for the end of its text; "" where nothing is known."""
        if self._interpreter.environment:
            return _where_packages_belong(error, "the environment that its EXECUTION_ENV_PATH names")
        return _where_packages_belong(
            error, "the server's Python, or into an environment of the model's own (parameter EXECUTION_ENV_PATH)"
        )

    def done(self) -> None:
        """The version is served: its instances have the processes now."""
        self._started = []
        self._under_way.done(self.closing)

    def give_up(self) -> None:
        """End what was started: the version is not served."""
        self._under_way.done(self.closing)
        for process in self._started:
            process.kill()
        self.free()

    def free(self) -> None:
        """No process is started any more: close the file of the memory, and let go of the environment, once."""
        self._arena.close()
        interpreter, self._interpreter = self._interpreter, Interpreter(environment=self._interpreter.environment)
        interpreter.release()

    def _start(self, name: str) -> ModelProcess:
        code = self._code
        return ModelProcess(
            code.model, name, self._interpreter, self._arena, self._reader, code.limit, self.closing, self.metrics
        )

    def _configure(self, process: ModelProcess, config: Mapping[str, Any], *, complete: bool) -> dict[str, Any] | None:
        """Have a process import model.py."""
        code = self._code
        content = {
            "path": str(code.path.absolute()),
            "instance": process.instance,
            "model": code.model,
            "version": code.version,
            "directories": code.directories(),
            "config": config,
            "complete": complete,
            "metrics": process.metrics_at,
        }
        said = process.ask(frames.CONFIGURE, content, self._limits.start_s)
        return None if said == b"null" else process.parsed(said)

    def _initialize(self, process: ModelProcess, start: Start, *, configured: bool) -> None:
        if not configured:
            self._configure(process, {}, complete=False)
        signature = start.signature
        content = {
            "args": start.args,
            "inputs": [[tensor.name, tensor.datatype.name] for tensor in signature.inputs],
            "outputs": [[tensor.name, tensor.datatype.name] for tensor in signature.outputs],
            "batched": signature.batched,
            "one_by_one": start.one_by_one,
            "stacked": start.stacked,
            "decoupled": start.decoupled,
        }
        process.ask(frames.INITIALIZE, content, self._limits.start_s)

    def _start_again(self, start: Start) -> ModelProcess:
        """Another process in place of one that has died.

        Raises:
            Failed, ProcessEnded, OSError: it cannot be had.
        """
        process = self._start(start.name)
        try:
            self._initialize(process, start, configured=False)
        except BaseException:
            process.kill()
            raise
        return process


class Threads:
    """The executors' own threads: the code is imported into the server.

    Args:
        code: of the version.
        get_table, loads: see ``Processes``.

    Attributes:
        allocate: None: the buffers of batches are ordinary memory.
        closing: a thread cannot be told.
        metrics: that the code keeps.
    """

    def __init__(
        self, code: Code, get_table: Callable[[], ModelTable] | None = None, loads: LoadsModels | None = None
    ) -> None:
        self._code = code
        if get_table is not None:
            set_caller(ThreadCaller(get_table, loads))
        self.allocate: Allocate | None = None
        self.closing = Closing()
        self.metrics = VersionMetrics()
        #: of each instance, by its name
        self._tables: dict[str, MetricTable] = {}

    def complete(self, name: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Import the code, and have it complete the configuration; None where it does not do that."""
        self._enter(name)
        try:
            return self._load(name).complete(dict(config), self._code.model)
        except (Exception, SystemExit) as error:
            raise Failed(describe(error)) from error

    def instances(self, starts: Sequence[Start]) -> list[ThreadInstance]:
        """Import the code for each instance, so that they share no module, and initialize them."""
        found = []
        for start in starts:
            output = self._enter(start.name)
            try:
                model = self._load(start.name)
                model.initialize(dict(start.args))
            except (Exception, SystemExit) as error:
                raise Failed(describe(error)) from error
            kind = DecoupledThreadInstance if start.decoupled else ThreadInstance
            found.append(
                kind(
                    start.name,
                    start.signature,
                    self._code.model,
                    model,
                    self._code.directories()[0],
                    output,
                    self._tables[start.name],
                    one_by_one=start.one_by_one,
                    stacked=start.stacked,
                    deviations=start.deviations,
                )
            )
        return found

    def remedy_for(self, error: str) -> str:
        """See ``Processes``."""
        return _where_packages_belong(
            error, "the server's Python, because it runs in its threads (toutates.isolation 'thread')"
        )

    def done(self) -> None:
        """Nothing is to be ended."""

    def give_up(self) -> None:
        """Likewise."""

    def free(self) -> None:
        """Likewise."""

    def _enter(self, name: str) -> PrintedOutput:
        output = PrintedOutput(self._code.model, name, self._code.limit)
        set_model_dir(self._code.directories()[0])
        set_sink(output.log)
        table = self._tables.get(name)
        if table is None:
            memory = np.zeros(frames.METRICS_BYTES, np.uint8)
            table = self._tables[name] = MetricTable(memory.data)
            self.metrics.add(memory)
        set_metric_table(table)
        note_loading(is_loading=True)
        return output

    def _load(self, name: str) -> Model:
        model = Model(str(self._code.path.absolute()), name)
        model.load(self._code.version, self._code.directories())
        return model
