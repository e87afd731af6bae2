"""``python -m toutates``."""

from __future__ import annotations

import sys

from toutates.command.entry import main

if __name__ == "__main__":
    sys.exit(main())
