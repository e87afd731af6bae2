"""Several processes on the same ports (``--processes``): one parent, which starts, watches and ends them.

    parent      ``Parent``: reserves the ports, has /metrics and the status page of all, carries calls to all
    process     the server as it is with one process; ``Member`` is its side of the ``Channel`` to the parent

Each process is an interpreter of its own, and not a fork: the parent has threads, and so would have whatever a fork of
it begins with.
"""
