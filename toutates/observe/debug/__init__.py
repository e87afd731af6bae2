"""Dumps of threads and tasks, and the profiler."""
