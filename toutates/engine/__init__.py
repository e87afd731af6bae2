"""Batching: rows of many requests in one buffer, run by a backend in threads of their own.

``supertensor`` holds the rows and decides what runs next, ``lane`` lays the buffers out, ``executor`` is the loop that
runs them, and ``servable`` has the interfaces. How a batch's way is timed is in ``result``.
"""
