"""The machine and the process: CPUs, memory, interpreter, logs, errors."""
