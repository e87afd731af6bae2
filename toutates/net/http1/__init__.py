"""HTTP/1.1 as a worker serves it: ``connection`` drives ``toutates.http1``, ``service`` hands requests to a handler."""
