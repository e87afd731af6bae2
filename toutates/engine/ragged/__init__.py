"""Rows of different shape in one batch without padding: end to end in one array, inputs say where each ends."""
