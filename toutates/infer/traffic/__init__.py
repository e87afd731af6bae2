"""Requests of one name that are divided between versions, and copies of requests whose answers are compared."""
