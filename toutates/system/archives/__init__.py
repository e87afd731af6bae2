"""Reading and unpacking archives that may come from anybody."""
