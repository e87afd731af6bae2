"""Backends that packages bring: which there are, how they are imported, loaded and run."""
