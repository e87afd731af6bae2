"""What can be asked of the server: the data plane, and the transports that call it."""
