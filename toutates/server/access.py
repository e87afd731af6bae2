"""Who is let in: the gates of one process, and the files that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from toutates.access.gate import Gate
from toutates.access.key_file import read_key_file
from toutates.access.pages import WebPages
from toutates.access.rules import read_rules
from toutates.server.options import Options
from toutates.server.replaced_files import ReplacedFiles
from toutates.system.address import full_host_name
from toutates.system.thread_pools import ThreadPool

__all__ = ["Access"]

_NAMES: Final = ThreadPool("names", 1)


class Access:
    """The gates. Used on the main thread, which reads the files; workers ask the gates.

    Args:
        options: of the server.
        certificate_names: returns the names that its certificate is for.

    Attributes:
        gate: for everything; None lets everybody in.
        text_gate: for the APIs for text; the same, or that of ``--api-key-file``.
        gates: those there are.
        pages: which pages of browsers may change the server.
        files: of each gate, to be watched.

    Raises:
        ConfigurationError: a file cannot be used.
    """

    def __init__(self, options: Options, certificate_names: Callable[[], Iterable[str]]) -> None:
        self.gate: Gate | None = None
        if options.access_file is not None:
            self.gate = Gate(partial(read_rules, options.access_file))
        self.text_gate = self.gate
        if options.api_key_file is not None:
            self.text_gate = Gate(partial(read_key_file, options.api_key_file))
        self.gates = [] if self.text_gate is None else [self.text_gate]
        self.pages = WebPages(options.rest.cross_origin, options.allowed_hosts, certificate_names)
        for gate in self.gates:
            gate.tell()

        self.files = [
            ReplacedFiles(partial(_files_of, gate), gate.reload, "the rules read before stay in force")
            for gate in self.gates
        ]

    async def learn_names(self) -> None:
        """Find this machine's name with its domain, by which pages may ask too. That may take long, beside all else."""
        self.pages.add_name(await _NAMES.run(full_host_name, abandon_on_cancel=True))


def _files_of(gate: Gate) -> tuple[Path, ...]:
    return gate.era.rules.files
