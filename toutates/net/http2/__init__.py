"""Plain HTTP/2 as a worker serves it: what comes on streams beside gRPC goes to the handlers of HTTP/1.1."""
