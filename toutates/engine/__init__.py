"""Batching: rows of many requests in one buffer, run by ONNX Runtime in threads of their own.

``supertensor`` holds the rows and decides what runs next, ``lane`` lays the buffers out, ``session`` is ONNX Runtime,
and ``executor`` is the loop in between. How a batch's way is timed is in ``result``.
"""
