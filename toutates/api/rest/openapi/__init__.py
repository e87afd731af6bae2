"""The description of REST in OpenAPI 3.0: every endpoint, and the tensors of every model that is served.

``messages`` makes schemas of protobuf's messages, ``operations`` has what is said of each endpoint, ``models``
describes a model's requests, and ``document`` puts all of it together.
"""
