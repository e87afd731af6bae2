"""Load on a server of the v2 protocol: what is sent when, by which connection, and what became of it.

``arrivals``, ``latencies``, ``client_connection`` and ``outcome`` have no socket, no clock and no thread. ``driver``
has the sockets, and ``load`` is the process of its own that a load runs in.
"""
