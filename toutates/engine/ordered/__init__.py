"""Versions whose answers leave in the order in which their requests came (``preserve_ordering``)."""
