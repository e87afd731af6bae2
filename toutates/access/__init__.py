"""Who may call what, and how often. It knows no transport.

groups      the names of what callers may be let do
callers     a caller who is known: what it may do, with which models, for how long
quotas      requests and rows per second of each client
rules       the access file, from YAML to an immutable record
jwks        public keys of token issuers
tokens      JSON Web Tokens, from their text to who is meant; needs the extra ``jwt``
pages       what browsers may do here for the pages that they show
gate        from the bytes of an ``Authorization`` field to a caller
"""
