"""``h2grpc`` could be a package of its own: ``tests/test_rooms.py`` sees that it imports nothing of ours and no I/O."""

from __future__ import annotations

import toutates.h2grpc


def test_every_exported_name_exists_and_is_documented() -> None:
    for name in toutates.h2grpc.__all__:
        assert hasattr(toutates.h2grpc, name)
    assert len(set(toutates.h2grpc.__all__)) == len(toutates.h2grpc.__all__)
