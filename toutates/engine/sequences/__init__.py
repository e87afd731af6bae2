"""Sequences: requests that belong together, run one after the other, and find the state that the last one has left."""
