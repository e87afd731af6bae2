"""TorchServe's own HTTP APIs, for its clients.

answers       its JSON, and its words for errors
predictions   /ping and /predictions, on the ports of REST
management    the table of the management API, on an address of its own
models        what that does: registers, scales, describes and unregisters models that were made of archives
downloads     which archives it takes, and from where
"""
