"""HTTP APIs for text, beside REST on the same ports: those that people's code already speaks.

handler       from a request's head to its route: keys, restrictions, methods
work          one request on its way: read, computed, answered; what is put off to another thread
routes        what a route is, and what a request for texts to be computed comes to
openai        /v1/embeddings and /v1/models, as OpenAI's
tei           the routes of text-embeddings-inference
cohere        /v1/rerank and /v2/rerank
proxy         /v1/embedding
members       what other servers' clients send: carried out, refused, or ignored by name
options       members that say how texts are read and cut
lookup        which model a request means
reading       JSON to typed requests, bounded in what it costs; large_json reads megabytes in steps
vectors       vectors as base64 and JSON, in pieces
problems      why a request is refused, for each API to say in its own form
observing     what is counted, and what the access log gets
"""
