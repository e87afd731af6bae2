"""Inference over REST: the v2 protocol's JSON, with Triton's binary tensor extension.

Bytes in, requests out; outputs in, bytes out. Nothing here knows a socket, a thread or a model table.

    lengths     where the JSON part of a body ends
    cutting     separates a body's data and id from the bytes that are the same each time
    request     reads a request: the long way, which learns a form, and by a form that is known
    raw_request reads a body that is one tensor, without JSON
    generate    reads and writes the flat objects of Triton's generate extension
    parameters  parameters of requests, and header fields that become some
    arrays      JSON arrays as the bytes of tensors
    values      the bytes of tensors as JSON arrays
    response    writes a response
    document    JSON in Triton's dialect, and its errors
"""
