"""Metrics, status page and debugging over HTTP: the thread that serves them, its connections, and its endpoints."""
