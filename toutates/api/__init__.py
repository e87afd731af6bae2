"""The RPCs: one table from method path to handler, and the handlers."""
