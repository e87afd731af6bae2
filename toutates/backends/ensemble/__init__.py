"""Ensembles: models that are made of other models, whose tensors go from one to the next inside the server."""
