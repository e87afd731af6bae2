"""Prometheus metrics: their table (``catalogue``), their values (``collector``), and their text (``exposition``)."""
