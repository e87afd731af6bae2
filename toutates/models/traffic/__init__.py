"""Other names for models, requests that are split between versions, and versions that get copies of requests."""
