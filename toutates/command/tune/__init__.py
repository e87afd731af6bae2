"""``toutates tune``: ``parser`` has the flags, ``running`` reads them, tunes, and writes what came of it. What it tunes
with is in ``toutates.tune``."""
