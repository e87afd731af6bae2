"""Traces of requests: whose are made, and how they get to an OpenTelemetry collector.

Nothing here is on the way of a request that is not traced. Modules that need the extra ``otel`` are imported by
``opening``, where there is a collector to send to.
"""
