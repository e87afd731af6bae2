"""The backends that come with Toutates, one module each. Of Toutates they use ``backends.interface`` alone."""
