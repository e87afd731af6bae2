"""``toutates bench``: ``parser`` has the flags, ``perf_analyzer`` those of that program, ``reading`` makes settings of
them, and ``running`` measures. What they measure with is in ``toutates.bench``."""
