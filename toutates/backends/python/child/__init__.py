"""What runs in the process of a model's instance. It needs nothing but NumPy, and Python 3.9 or newer.

The interpreter may be the model's own (``EXECUTION_ENV_PATH``), so nothing here imports the rest of the server.
"""
