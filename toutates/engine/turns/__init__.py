"""Whose run is next, among the executors of all models. Only where a model has a latency target, or runs are rated.

``order`` decides, without threads. ``resources`` counts what runs need. ``arbiter`` has executors wait for their turn.
"""
