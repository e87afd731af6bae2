"""Traces: which requests have one, and how their spans get to an OpenTelemetry collector.

Requests that are not traced run none of this code. Modules that need the extra ``otel`` are imported by
``opening``, where there is a collector to send to.
"""
