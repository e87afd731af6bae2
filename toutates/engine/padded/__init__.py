"""Rows of different length in one batch: padded to one length, and their outputs cut back."""
