"""A tensor on its way from one model to another: its bytes as they are sent, with datatype and shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from toutates.engine.servable import Content, view_of
from toutates.protocol.datatypes import BY_NAME, Datatype, encode_bytes_tensor
from toutates.protocol.strings import StringRows, join_rows

__all__ = ["Tensor"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as clients see it.

    Attributes:
        datatype: of its elements.
        shape: with the batch dimension where there is one; no dimension is open.
        content: row-major bytes; BYTES encoded as they are sent. Nobody changes them.
    """

    datatype: Datatype
    shape: tuple[int, ...]
    content: Content

    @classmethod
    def of(cls, array: npt.NDArray[Any], datatype: Datatype | None = None) -> Tensor:
        """An array as a tensor. Its memory is shared where it is contiguous: do not change it.

        Args:
            array: of any type that a datatype has in memory; objects are elements of BYTES.
            datatype: None for the one whose type in memory is the array's; BF16 has to be named.

        Raises:
            ValueError: no datatype has the array's type in memory.
        """
        if datatype is None:
            if array.dtype.kind in "OSU":
                datatype = BY_NAME["BYTES"]
            else:
                found = [one for one in BY_NAME.values() if one.numpy == array.dtype]
                if not found:
                    raise ValueError(f"tensors have no elements of type {array.dtype}")
                datatype = found[0]
        if not datatype.size:
            return cls(datatype, array.shape, encode_bytes_tensor(array))
        whole = np.ascontiguousarray(array, datatype.numpy).reshape(-1)
        return cls(datatype, array.shape, whole.view(np.uint8))

    def array(self) -> npt.NDArray[Any]:
        """The tensor as an array that cannot be written to; BYTES as objects of type bytes."""
        if not self.datatype.size:
            elements = np.empty(prod(self.shape), np.object_)
            if elements.size:
                rows = StringRows.received(view_of(self.content), self.shape, tensor="", model="")
                elements[:] = join_rows([rows], self.shape).elements()
            return elements.reshape(self.shape)
        flat = np.frombuffer(self.content, self.datatype.numpy)
        flat.flags.writeable = False
        return flat.reshape(self.shape)
