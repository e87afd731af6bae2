"""Who is let in: the gates of one process, and the files that they are made of."""

from __future__ import annotations

import logging
from functools import partial

import trio

from toutates.access.gate import Gate
from toutates.access.key_file import read_key_file
from toutates.access.rules import read_rules
from toutates.access.watching import signature_of
from toutates.server.options import Options

__all__ = ["POLL_S", "Access"]

logger = logging.getLogger(__name__)

#: How long a change of the access file may stay unnoticed.
POLL_S = 1.0


class Access:
    """The gates. Used on the main thread, which reads the files; workers ask the gates.

    Args:
        options: of the server.

    Attributes:
        gate: for everything; None lets everybody in.
        text_gate: for the APIs for text; the same, or that of ``--api-key-file``.
        gates: those there are.

    Raises:
        ConfigurationError: a file cannot be used.
    """

    def __init__(self, options: Options) -> None:
        self.gate: Gate | None = None
        if options.access_file is not None:
            self.gate = Gate(partial(read_rules, options.access_file))
        self.text_gate = self.gate
        if options.api_key_file is not None:
            self.text_gate = Gate(partial(read_key_file, options.api_key_file))
        self.gates = [] if self.text_gate is None else [self.text_gate]
        for gate in self.gates:
            logger.info("%s", gate.description)

    def reload(self) -> None:
        """Read the files again. Those that cannot be used change nothing."""
        for gate in self.gates:
            gate.reload()

    async def watch(self) -> None:
        """Read the access file, and those that it names, again when they have changed, until cancelled."""
        gate = self.gate
        if gate is None:
            return
        files = gate.era.rules.files
        seen = signature_of(files)
        while True:
            await trio.sleep(POLL_S)
            found = signature_of(files)
            if found == seen:
                continue
            gate.reload()
            # As they were before they were read: one that has changed since is read again.
            seen = found
            if gate.era.rules.files != files:
                files = gate.era.rules.files
                seen = signature_of(files)
