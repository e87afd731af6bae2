"""A model of the Hugging Face Hub as a repository.

repository   one model, by its listing; the cache has its files
client       the Hub's listings and files over HTTP, and its errors in our words
layout       which files of a repository of the Hub make the model, and where they lie in it
"""
