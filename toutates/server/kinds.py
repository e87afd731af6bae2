"""The kinds of models that there are: those of a server, and of the commands that look at models without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toutates.backends.ensemble.loader import EnsembleKind
from toutates.backends.onnx.loader import OnnxKind
from toutates.backends.onnx.opening import SessionOptions
from toutates.backends.onnx.provider_names import Provider
from toutates.backends.onnx.weights import GraphFiles
from toutates.backends.plugins.kind import PluginKind
from toutates.backends.python.kind import PythonKind
from toutates.backends.python.loads import LoadsModels
from toutates.backends.python.starts import LoadsUnderWay
from toutates.backends.text.kind import TextKind
from toutates.models.kinds import Kind
from toutates.models.table import ModelTable
from toutates.system.placement import Placement
from toutates.system.private_copies import PrivateCopies

__all__ = ["kinds_of_models"]


def kinds_of_models(
    sessions: SessionOptions,
    placement: Placement | None = None,
    device_problem: Callable[[Sequence[Provider]], str] = lambda providers: "",
    *,
    allow_pickle: bool = False,
    get_table: Callable[[], ModelTable] | None = None,
    loads: LoadsModels | None = None,
    under_way: LoadsUnderWay | None = None,
    copies: PrivateCopies | None = None,
) -> list[Kind]:
    """All kinds, in the order in which they are asked whether a version's files are theirs.

    Args:
        sessions: how sessions of ONNX Runtime are made.
        placement: where threads run.
        device_problem: see ``OnnxKind``.
        allow_pickle: see ``PluginKind``.
        get_table, loads, under_way: see ``PythonKind``.
        copies: see ``GraphFiles``.
    """
    files = GraphFiles(copies)
    return [
        EnsembleKind(),
        PluginKind(allow_pickle=allow_pickle),
        PythonKind(get_table, loads, under_way),
        TextKind(sessions, placement, files),
        OnnxKind(sessions, placement, device_problem, files),
    ]
