"""HTTP APIs for text, beside REST on the same ports: those that people's code already speaks.

handler       from a request's head to what answers it: routes, keys, and what is put off to another thread
work          one request on its way: read, computed, answered
openai        /v1/embeddings and /v1/models, as OpenAI's
tei           the routes of text-embeddings-inference
cohere        /v1/rerank and /v2/rerank
proxy         /v1/embedding
lookup        which model a request means
reading       JSON to typed requests, bounded in what it costs
vectors       vectors as base64 and JSON
problems      why a request is refused, for each API to say in its own form
keys          the keys of --api-key-file
"""
