"""REST: the table of endpoints, each a thin adapter around a function of the data plane, and HTTP's statuses.

Pure functions: a path to an endpoint, a body to a request message, a response message to a body. Moving the bytes is
for whoever drives a connection. Inference is read and written by ``toutates.protocol.rest``.
"""
