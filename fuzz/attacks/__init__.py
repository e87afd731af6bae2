"""Attackers of the server, one module per family, and what measures them: ``python -m fuzz.attacks --help``.

Each attacker is a process of its own that speaks raw HTTP/2 over real sockets, and counts what it spends and what the
server answers. ``experiment`` runs one against a live server while honest clients go on; ``report`` makes the table of
docs/security.md from that, and tests/attacks holds the server to it.
"""
