"""String tensors of ONNX Runtime that hold any bytes, which its Python interface does not offer.

That interface turns ``str`` into UTF-8 on the way in and UTF-8 into ``str`` on the way out, and knows nothing else. Its
C interface would take bytes, but the one in the Python module is not exported, and the library beside it is another
copy of ONNX Runtime, which knows nothing of the module's sessions and values. What the Python interface does give is
the address of a tensor's elements (``OrtValue.data_ptr``), and those are ``std::string`` of libstdc++, whose layout is
part of the ABI of GCC and has been the same since GCC 5:

    pointer to the bytes | length | 16 bytes: a string of up to 15 bytes and its 0, or the capacity of a longer one

So a tensor of empty strings is made by ONNX Runtime, and its elements are *lent* bytes for a run: short ones are
written into them, of longer ones they get the address and the length. ONNX Runtime never changes the inputs of a graph.
After the run the elements are as they were, so that ONNX Runtime frees what it made and nothing else. Outputs are read
in place. That costs no more than the conversion to ``str`` and back, and less for many or large elements.

``problem`` tries all of it out before the first use. It writes nothing before it has seen, in memory that is certainly
the tensor's, that each element points to its own 16 bytes. Where something is different it says what, and sessions go
through ``str``.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from functools import cache
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from toutates.backends.onnx.provider_names import CPU
from toutates.protocol.strings import MANY_ELEMENTS, EncodedStrings, StringTensor, rest
from toutates.system.text import described

__all__ = ["BlankStrings", "problem", "read_strings", "usable"]

logger = logging.getLogger(__name__)

#: Bytes of a ``std::string``, and of the longest that is held inside it.
_SIZE: Final = 32
_LONGEST_SHORT: Final = 15
#: Pointer, length, and the bytes of a short string; or the capacity in their place.
_SHORT = struct.Struct("=QQ16s")
_LONG = struct.Struct("=QQQQ")
_HEAD = struct.Struct("=QQ16x")
_LENGTH = struct.Struct("<I")
#: From so many elements on, NumPy's operations are worth their start: 20 us.
_FEW: Final = 48
#: Elements that are written or read in one operation of NumPy, in about a millisecond.
_STEP: Final = 16_384

#: ONNX files of opset 13: y = Expand("", shape), and y = Concat(x, x), which copies every string.
_BLANKS_MODEL: Final = bytes.fromhex(
    "080712003a410a150a01650a0573686170651201792206457870616e641201672a07100832004201655a110a0573686170"
    "6512080a06080712020a0062090a017912040a02080842040a00100d"
)
_COPYING_MODEL: Final = bytes.fromhex(
    "080712003a470a1e0a01780a01781201792206436f6e6361742a0b0a04617869731800a001021201675a100a0178120b0a"
    "09080812050a0312016e62100a0179120b0a09080812050a0312016d42040a00100d"
)


class BlankStrings:
    """A string tensor of empty strings, which can be lent bytes. Used by one thread at a time.

    Args:
        shape: of the tensor.
        own: what each element is as long as it is lent nothing, 15 bytes at most.

    Attributes:
        value: the tensor, to be bound as an input.
        count: its elements.
    """

    def __init__(self, shape: tuple[int, ...], own: bytes = b"") -> None:
        self.value = _blank(shape)
        self.count = prod(shape)
        self._address = self.value.data_ptr() if self.count else 0
        if own and self.count:
            places = range(self._address + 16, self._address + self.count * _SIZE, _SIZE)
            records = b"".join([_SHORT.pack(place, len(own), own) for place in places])
            ctypes.memmove(self._address, records, len(records))
        self._before = ctypes.string_at(self._address, self.count * _SIZE) if self.count else b""
        self._lent: object = None

    def lend(self, strings: StringTensor) -> None:
        """Let the tensor have these elements until ``take_back``. Of the same number."""
        if self.count > _FEW:
            self._lend_many(strings)
        elif self.count:
            self._lend_few(strings)

    def take_back(self) -> None:
        """The elements are empty again. Takes no memory, so that it cannot fail."""
        ctypes.memmove(self._address, self._before, len(self._before))
        self._lent = None

    def _lend_few(self, strings: StringTensor) -> None:
        content = strings.content
        first = self._lent = ctypes.c_char.from_buffer(content)
        base = ctypes.addressof(first)
        own = self._address + 16
        records = []
        for start, length in zip(strings.starts, strings.lengths, strict=True):
            if length <= _LONGEST_SHORT:
                records.append(_SHORT.pack(own, length, bytes(content[start : start + length])))
            else:
                content[start + length] = 0  # where C ends a string
                records.append(_LONG.pack(base + start, length, length, 0))
            own += _SIZE
        ctypes.memmove(self._address, b"".join(records), len(records) * _SIZE)

    def _lend_many(self, strings: StringTensor) -> None:
        content = np.frombuffer(strings.content, np.uint8)
        self._lent = content
        base = content.ctypes.data
        words = _words(self._address, self.count)
        starts = np.asarray(strings.starts, np.int64)
        lengths = np.asarray(strings.lengths, np.int64)
        within = np.arange(16)
        for at in range(0, self.count, _STEP):
            part = slice(at, at + _STEP)
            start, length = starts[part], lengths[part]
            short = length <= _LONGEST_SHORT
            long = ~short
            content[start[long] + length[long]] = 0
            # Beyond an element's end there may be anything, and beyond the content's nothing.
            index = np.minimum(start[short, None] + within, len(content) - 1)
            inside = np.where(within < length[short, None], content[index], 0).astype(np.uint8)
            filled = words[part].copy()
            filled[short, 2:] = inside.view(np.uint64)
            filled[long, 0] = (base + start[long]).astype(np.uint64)
            filled[long, 2] = length[long].astype(np.uint64)
            filled[long, 3] = 0
            filled[:, 1] = length.astype(np.uint64)
            words[part] = filled
            if self.count > MANY_ELEMENTS:
                rest()


def read_strings(value: onnxruntime.OrtValue) -> EncodedStrings:
    """The elements of a string tensor in the CPU's memory, copied."""
    shape = tuple(value.shape())
    count = prod(shape)
    if not count:
        return EncodedStrings(b"", [0], shape)
    address = value.data_ptr()
    parts: list[bytes] = []
    if count > _FEW:
        bounds = np.zeros(count + 1, np.int64)
        words = _words(address, count)
        np.cumsum(words[:, 1].astype(np.int64) + 4, out=bounds[1:])
        for at in range(0, count, MANY_ELEMENTS):
            parts.append(_encoded(words[at : at + MANY_ELEMENTS]))
            if count > MANY_ELEMENTS:
                rest()
        return EncodedStrings(b"".join(parts), bounds, shape)
    ends = [0]
    end = 0
    for pointer, length in _HEAD.iter_unpack(ctypes.string_at(address, count * _SIZE)):
        parts += (_LENGTH.pack(length), ctypes.string_at(pointer, length))
        end += 4 + length
        ends.append(end)
    return EncodedStrings(b"".join(parts), ends, shape)


def _encoded(words: npt.NDArray[np.uint64]) -> bytes:
    """Each of these elements after its length."""
    lengths = words[:, 1]
    if int(lengths.max()) <= _LONGEST_SHORT:
        encoded = np.empty((len(words), 20), np.uint8)
        encoded[:, :4] = lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
        encoded[:, 4:] = np.ascontiguousarray(words[:, 2:]).view(np.uint8)
        return encoded[np.arange(20) < lengths[:, None] + 4].tobytes()
    string_at, pack = ctypes.string_at, _LENGTH.pack
    return b"".join(
        [part for pointer, length in words[:, :2].tolist() for part in (pack(length), string_at(pointer, length))]
    )


def _words(address: int, count: int) -> npt.NDArray[np.uint64]:
    """The memory of ``count`` strings, four words each."""
    memory = memoryview((ctypes.c_char * (count * _SIZE)).from_address(address)).cast("B")
    return np.frombuffer(memory, np.uint64).reshape(count, 4)


@cache
def _session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # what is made here is made seldom
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=[CPU], enable_fallback=0)


def _blank(shape: tuple[int, ...]) -> onnxruntime.OrtValue:
    session = _session(_BLANKS_MODEL)
    binding = session.io_binding()
    binding.bind_cpu_input("shape", np.array(shape, np.int64))
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0]


# --- whether all of that holds ----------------------------------------------------------------------------------------

#: For the first look. Whatever ``std::string`` is, it takes a word; so 256 of them are in memory that is the tensor's.
_LOOKED_AT: Final = 64


@cache
def problem() -> str:
    """Why strings cannot be lent and read with this ONNX Runtime; empty if they can. Takes 30 ms, once."""
    try:
        return _layout_problem() or _bytes_problem()
    except Exception as error:
        return described(error)


@cache
def usable() -> bool:
    """Whether strings can be lent and read; where they cannot, the log has said why."""
    why = problem()
    if why:
        logger.warning(
            "BYTES can only be UTF-8, because string tensors of ONNX Runtime %s are not as expected: %s",
            onnxruntime.__version__,
            why,
        )
    return not why


def _layout_problem() -> str:
    """Look, without a write, whether empty strings point to their own memory."""
    value = _blank((_LOOKED_AT * _SIZE // 8,))
    address = value.data_ptr()
    for at, (pointer, length) in enumerate(_HEAD.iter_unpack(ctypes.string_at(address, _LOOKED_AT * _SIZE))):
        if pointer != address + at * _SIZE + 16 or length:
            return "an empty string does not point to memory of its own"
    return ""


def _bytes_problem() -> str:
    """Lend bytes of all kinds, copy them with ONNX Runtime, and read the copies."""
    kinds = (b"", b"\0", b"\xff\xfe", b"a\0b\0", b"\xf0" * 15, b"\x80" * 16, b"\0" * 17, b"\xff" * 1_000 + b"\0")
    session = _session(_COPYING_MODEL)
    for elements in (kinds, kinds * _FEW):
        shape = (len(elements),)
        blank = BlankStrings(shape)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", blank.value)
        binding.bind_output("y", "cpu")
        blank.lend(StringTensor.of(elements, shape))
        try:
            session.run_with_iobinding(binding)
            copied = read_strings(binding.get_outputs()[0])
        finally:
            blank.take_back()
        if copied.content != EncodedStrings.of(elements * 2, (2 * len(elements),)).content:
            return "bytes are not the same after a run"
        if read_strings(blank.value).content != bytes(4 * len(elements)):
            return "strings are not empty again after a run"
    return ""
