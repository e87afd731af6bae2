"""What handlers import of TorchServe, in as few lines as its documented behaviour needs; torch only where it is used.

This package is part of Toutates. Its version is that of the TorchServe whose behaviour it has.
"""

__version__ = "0.12.0"
