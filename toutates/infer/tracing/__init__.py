"""Traces of requests: whose are made, and how they get to an OpenTelemetry collector.

Nothing here is on the way of a request that is not traced. ``spans`` and ``exporter`` alone know OpenTelemetry, which
is an extra; they are imported when there is a collector to send to.
"""
