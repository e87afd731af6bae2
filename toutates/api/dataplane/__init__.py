"""The data plane: what can be asked beside inference, without a transport.

``DataPlane`` has a function for each RPC, from request message to response message. An RPC that takes more than a few
lines has a module of its own beside it.
"""
