"""TorchServe's model archives: unpacked, understood, and turned into folders of a model repository.

    manifest      MAR-INF/MANIFEST.json: the model's name, its version, its handler
    settings      model-config.yaml, and what it comes to in a config.pbtxt
    importing     an archive into MODEL/VERSION of a repository
    imported      what a repository has of archives: their versions by TorchServe's names

``runtime`` is copied into each such folder: ``model.py``, a Python model that runs the handler, and the package ``ts``
that handlers import. Nothing here imports it, and it imports nothing of ours.
"""
