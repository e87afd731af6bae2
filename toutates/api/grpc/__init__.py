"""The RPCs: one table from path to handler."""
