"""The composition root: options, listeners, threads, and their end."""
