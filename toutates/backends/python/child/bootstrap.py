"""Starts the process of an instance: ``python bootstrap.py SOCKET MEMORY``, two numbers of open files.

It finds its own package without the rest of the server, whose libraries may be of another Python.
"""

import ctypes
import os
import signal
import socket
import sys
import types

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the model until the server closes the socket."""
    try:
        # A model that hangs does not see that the socket is closed, so the kernel ends it with the server.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (AttributeError, OSError):
        pass
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    paths = [here]
    for _ in range(3):
        paths.insert(0, os.path.dirname(paths[0]))
    for name, path in zip(("toutates", "toutates.backends", "toutates.backends.python"), paths):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package
    import faulthandler

    faulthandler.enable()
    from toutates.backends.python.child.worker import serve

    control, memory = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    sys.argv[:] = [""]  # as Triton has it: the model's code shall not take our arguments for its own
    serve(control, memory)


if __name__ == "__main__":
    main()
