"""The data plane: what can be asked beside inference, free of any transport.

``DataPlane`` has a function for each RPC, from request message to response message. The modules beside it hold what
takes more than a few lines.
"""
