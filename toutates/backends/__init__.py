"""Backends, which compute the answers: one package per kind of model."""
