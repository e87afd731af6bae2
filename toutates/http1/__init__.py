"""HTTP/1.1, the server's side: bytes in and requests out, responses in and bytes out.

There is no socket, clock, task or thread in here, and nothing of the rest of the server. ``Connection`` is the way in.
"""

from toutates.http1.body_memory import BodyMemory
from toutates.http1.coding import Deflater
from toutates.http1.connection import Connection, Receiving
from toutates.http1.exchange import Answers, Request, Responder
from toutates.http1.head import Head
from toutates.http1.limits import Limits
from toutates.http1.responses import Refused, encode_fields

__all__ = [
    "Answers",
    "BodyMemory",
    "Connection",
    "Deflater",
    "Head",
    "Limits",
    "Receiving",
    "Refused",
    "Request",
    "Responder",
    "encode_fields",
]
