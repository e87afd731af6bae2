"""TorchServe's handlers, as far as they are here."""
