"""gRPC on a worker: ``service`` makes its connections and calls its handlers, ``streaming`` is a handler's side."""
