"""``python -m tests.e2e.coded CODE ARGUMENTS...`` runs CODE as ``python -c CODE ARGUMENTS...`` does.

For forked servers (``forking``) that a test changes before they start. What a server needs has been imported by then:
change attributes of modules and classes, and nothing that is imported by name elsewhere.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    exec(sys.argv.pop(1), {"__name__": "__main__"})
