"""The backend of Python models: Triton's ``TritonPythonModel``, each instance in a process of its own."""
