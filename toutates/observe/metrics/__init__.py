"""Prometheus metrics: what there is (``catalogue``), where it comes from (``collector``), how it is written."""
