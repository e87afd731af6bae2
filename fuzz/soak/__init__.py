"""Soak: everything that clients do, for as long as one likes, and an account at the end (``python -m fuzz.soak``)."""
