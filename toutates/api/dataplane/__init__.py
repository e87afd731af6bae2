"""The data plane: what can be asked beside inference, free of any transport."""
