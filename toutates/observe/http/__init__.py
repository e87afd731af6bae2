"""The HTTP side: its thread, its connections, and what answers."""
