"""Versions with a latency target: what a run will take, which requests would be late, and what is left out.

``profile`` learns how long runs take. ``queue`` keeps count of the work that waits and runs, and says whether a request
makes its deadline. ``port`` asks it for each request, ``backend`` leaves out batches that waited too long, and
``supertensor`` puts them together.
"""
