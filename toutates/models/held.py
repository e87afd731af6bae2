"""A model version for a caller inside the server, which stays until the caller lets go."""

from __future__ import annotations

from collections.abc import Callable

from toutates.models.table import ModelTable, ServedVersion

__all__ = ["hold_version"]


def hold_version(get_table: Callable[[], ModelTable], name: str, version: str = "") -> ServedVersion:
    """The version of a model that answers now; call ``calls.let_go()`` on it once.

    Args:
        get_table: returns the model table as it is now. Any thread may call this.
        name: of the model.
        version: its number; "" for the newest.

    Raises:
        RequestError: in Triton's words: unknown, not ready, or the version is no number.
    """
    while True:
        found = get_table().find(name, version)
        # A version that is about to end is not in the table any more.
        if found.calls.hold():
            return found
