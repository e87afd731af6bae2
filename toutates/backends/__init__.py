"""What computes: one package per kind of model."""
