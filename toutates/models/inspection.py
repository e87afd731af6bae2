"""A version looked at without being served: its graph read on the CPU alone, its configuration held against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toutates.batching.lane import PackedLane
from toutates.batching.session import SessionOptions, load_session
from toutates.errors import ModelLoadError
from toutates.models.configuration import VersionConfiguration, load_configuration
from toutates.models.repository import VersionFolder
from toutates.models.signature_reader import read_signature
from toutates.models.warmup import check_warmup
from toutates.protocol.signature import Signature

__all__ = ["InspectedVersion", "inspect_version"]


@dataclass(frozen=True, slots=True)
class InspectedVersion:
    """What a version would be, were it loaded.

    Attributes:
        configuration: what its files say.
        signature: what they and the graph come to.
    """

    configuration: VersionConfiguration
    signature: Signature

    @property
    def batch(self) -> tuple[int, int] | None:
        """Rows of one batch of the SuperTensor, and the bytes of its buffers; None where a row has an open size."""
        settings, tensors = self.configuration.settings, self.signature.inputs
        given = [(at, tensor) for at, tensor in enumerate(tensors) if not tensor.optional]
        # BYTES and rows without elements are kept as they come, and have no buffers.
        if not given or any(not tensor.datatype.size or 0 in tensor.graph_shape for _, tensor in given):
            return settings.batch_size if self.signature.batched else 1, 0
        if any(-1 in tensor.graph_shape for _, tensor in given):
            return None
        shapes = tuple((at, tensor.graph_shape) for at, tensor in given)
        lane = PackedLane(self.signature, shapes, settings.batch_size)
        return lane.batch_rows, lane.batch_bytes


def inspect_version(folder: VersionFolder, custom_op_libraries: Sequence[Path] = ()) -> InspectedVersion:
    """Read a version's configuration and graph. Blocks while ONNX Runtime reads the weights; they are let go again.

    Args:
        folder: what ``repository.scan`` has found.
        custom_op_libraries: shared libraries of custom operators.

    Raises:
        ConfigurationError: a file cannot be used, or says otherwise than the graph; with a line for each problem.
        ModelLoadError: the graph cannot be read, with ONNX Runtime's reason.
    """
    configuration = load_configuration(folder, most_problems=None)
    if configuration.folder.problem:
        raise ModelLoadError(configuration.folder.problem)
    options = SessionOptions(
        custom_op_libraries=tuple(custom_op_libraries),
        graph_level="off",
        memory_arena=False,
        memory_pattern=False,
        # Weights as they lie in the file, and not a second time as the CPU's operators would like them.
        config_entries=(("session.disable_prepacking", "1"),),
    )
    session = load_session(configuration.folder.model_path, options)
    settings, source = configuration.settings, configuration.source
    signature = read_signature(session, settings, source=source, declared=configuration.declared)
    check_warmup(settings, signature, folder.path.parent, source)
    return InspectedVersion(configuration, signature)
