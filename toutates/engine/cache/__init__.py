"""The response cache: answers of models that ask for it, found again by the bytes of their inputs.

store.py      what is kept: entries by key, the least recently used left out first
keys.py       what a key is made of
port.py       a port that looks there before its requests go on, and keeps what comes back
cutting.py    the answer of one request, cut from those of its batch
joining.py    answers of one round, handed over together
servable.py   a version with the cache before it
"""
