"""BYTES in ONNX Runtime: any bytes go in and come out, and what it frees is what it made."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.engine.rig import Rig
from tests.graphs import model, tensor, unary
from toutates.backends.onnx import session as session_module
from toutates.backends.onnx import string_tensors
from toutates.backends.onnx.string_tensors import BlankStrings, read_strings
from toutates.protocol.strings import EncodedStrings, StringTensor
from toutates.system.errors import ExecutionFailed, InvalidRequest

#: Of every length around the longest that is held inside a std::string.
KINDS = (
    b"",
    b"\0",
    b"\xff",
    b"a\0b",
    b"\0\0\0",
    b"\xc3\x28 no UTF-8",
    *(bytes([0xF0 + at]) * at for at in range(12, 16)),
    b"\x80" * 16,
    b"trailing zeros" + b"\0" * 9,
    bytes(range(256)) * 300,
)


@pytest.fixture(autouse=True)
def really_lent() -> None:
    assert string_tensors.problem() == ""


def objects(*elements: bytes, columns: int = 1) -> Any:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(-1, columns)


def test_onnxruntime_itself_still_needs_str() -> None:
    # Why this module exists. When this fails, ONNX Runtime has learned to take bytes: use that.
    session = onnxruntime.InferenceSession(
        unary("Identity", ["n"], TensorProto.STRING), providers=["CPUExecutionProvider"]
    )

    def returned(array: Any) -> Any:
        return np.asarray(session.run(None, {"x": array})[0]).tolist()

    assert returned(np.array([b"a"], object)) == ["b'a'"]
    with pytest.raises(Exception, match="surrogates not allowed"):
        returned(np.array([b"\xff".decode(errors="surrogateescape")], object))
    assert returned(np.array([b"a\0"], "S2")) == ["a"]
    with pytest.raises(UnicodeDecodeError):
        returned(np.array([b"\xff"], "S1"))
    with pytest.raises(RuntimeError, match="non-string"):
        onnxruntime.OrtValue.ortvalue_from_numpy(np.array(["a"], object))


@pytest.mark.parametrize("times", [1, 100, 2_000], ids=["few", "many", "very many"])
@pytest.mark.parametrize("operator", ["Identity", "Unsqueeze"])
def test_any_bytes_come_back_from_the_model(operator: str, times: int) -> None:
    if operator == "Identity":
        content = unary("Identity", ["n", 1], TensorProto.STRING)
    else:  # whose output could be the memory of its input
        nodes = [helper.make_node("Unsqueeze", ["x", "one"], ["y"])]
        x, y = tensor("x", ["n", 1], TensorProto.STRING), tensor("y", ["n", 1, 1], TensorProto.STRING)
        content = model(nodes, [x], [y], one=np.array([1], np.int64))
    # The large one once: 2,000 of it are none of this test's business.
    elements = objects(*KINDS[:-1] * times, KINDS[-1])
    rig = Rig(content, batch_size=len(elements))
    with rig.running():
        for _ in range(3):
            rig.worker.add("a", rig.lane((1,)), elements)
            rig.worker.end_round()
            [answer] = rig.worker.collect("a")
            del rig.worker.answers["a"]
            assert answer.ravel().tolist() == elements.ravel().tolist()


def test_rows_of_several_requests_keep_their_bytes() -> None:
    rig = Rig(unary("Identity", ["n", 2], TensorProto.STRING), batch_size=64)
    with rig.running():
        for at, kind in enumerate(KINDS):
            rig.worker.add(at, rig.lane((2,)), objects(kind, kind[::-1], columns=2))
        rig.worker.end_round()
        answers = rig.worker.collect(*range(len(KINDS)))
    assert [answer.tolist() for answer in answers] == [[[kind, kind[::-1]]] for kind in KINDS]
    assert rig.batches == [(len(KINDS), len(KINDS))]


def test_the_model_computes_with_the_bytes() -> None:
    """A number of more than 15 digits is no longer inside its std::string, and ends where C ends a string."""
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)]
    x, y = tensor("x", ["n", 2], TensorProto.STRING), tensor("y", ["n", 2], TensorProto.DOUBLE)
    rig = Rig(model(nodes, [x], [y]))
    with rig.running():
        # Were the next length seen as a part of the first number, it would be 49, an ASCII 1.
        rig.worker.add("a", rig.lane((2,)), objects(b"1234567890.12345678", b"2" + b"0" * 48, columns=2))
        rig.worker.end_round()
        [answer] = rig.worker.collect("a")
    np.testing.assert_array_equal(answer, [[1234567890.12345678, 2e48]])


def test_bytes_and_bfloat16_go_through_one_model() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["text"], ["same"])]
    inputs = [tensor("x", ["n", 3], TensorProto.BFLOAT16), tensor("text", ["n", 1], TensorProto.STRING)]
    outputs = [tensor("y", ["n", 3], TensorProto.BFLOAT16), tensor("same", ["n", 1], TensorProto.STRING)]
    rig = Rig(model(nodes, inputs, outputs))
    numbers = np.array([[0x3F80, 0xC000, 1]], np.uint16)
    with rig.running():
        for context, kind in (("a", b"\xff\0"), ("b", b"\xfe" * 20)):
            rig.worker.add(context, rig.lane((3,), (1,)), numbers, objects(kind))
        rig.worker.end_round()
        for context, kind in (("a", b"\xff\0"), ("b", b"\xfe" * 20)):
            np.testing.assert_array_equal(rig.worker.collect(context)[0], numbers)
            np.testing.assert_array_equal(rig.worker.answers[context][1], objects(kind))


def test_bytes_that_a_model_makes_of_numbers_are_read() -> None:
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    # Not by the helper, which makes an array of the elements and loses their last zeros.
    table = TensorProto(name="table", data_type=TensorProto.STRING, dims=[3])
    table.string_data.extend([b"\xff\xfe", b"", b"\0" * 30])
    graph = helper.make_graph(
        nodes, "g", [tensor("x", ["n", 1], TensorProto.INT64)], [tensor("y", ["n", 1], TensorProto.STRING)], [table]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rig = Rig(made.SerializeToString())
    with rig.running():
        rig.worker.add("a", rig.lane((1,)), np.array([[2], [0], [1]]))
        rig.worker.end_round()
        assert rig.worker.collect("a")[0].tolist() == [[b"\0" * 30], [b"\xff\xfe"], [b""]]


@pytest.fixture
def blanks(monkeypatch: pytest.MonkeyPatch) -> list[BlankStrings]:
    """The blanks that sessions make."""
    made: list[BlankStrings] = []

    class Noted(BlankStrings):
        def __init__(self, shape: tuple[int, ...]) -> None:
            super().__init__(shape)
            made.append(self)

    monkeypatch.setattr(session_module, "BlankStrings", Noted)
    return made


def test_a_run_that_fails_takes_the_bytes_back(blanks: list[BlankStrings]) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    x, y = tensor("x", ["n", 1], TensorProto.STRING), tensor("y", ["n", 1])
    rig = Rig(model(nodes, [x], [y]))
    session = rig.sessions[0]
    for _ in range(3):
        with pytest.raises(ExecutionFailed):
            session.run_arrays({0: StringTensor.of([b"no number, and long enough"], (1, 1))})
        (output,) = session.run_arrays({0: StringTensor.of([b"2.5"], (1, 1))})
        assert isinstance(output, np.ndarray)
        assert output.tolist() == [[2.5]]
    assert [read_strings(blank.value).content for blank in blanks] == [bytes(4)]


def test_a_blank_is_as_it_was_after_each_use() -> None:
    for count in (1, 20, 200):
        blank = BlankStrings((count,))
        before = ctypes.string_at(blank.value.data_ptr(), 32 * count)
        for elements in ([b"short"] * count, [b"long enough for memory" * 9] * count):
            blank.lend(StringTensor.of(elements, (count,)))
            assert read_strings(blank.value).content == EncodedStrings.of(elements, (count,)).content
            blank.take_back()
            assert ctypes.string_at(blank.value.data_ptr(), 32 * count) == before
        del blank
        gc.collect()


def test_in_the_test_mode_a_blank_has_strings_that_nobody_wrote_but_while_it_is_lent_bytes() -> None:
    own = bytes(range(0x80, 0x8F))
    for count in (1, 20, 200):
        blank = BlankStrings((count,), own)
        unwritten = EncodedStrings.of([own] * count, (count,)).content
        assert read_strings(blank.value).content == unwritten
        for elements in ([b""] * count, [b"long enough for memory" * 9] * count):
            blank.lend(StringTensor.of(elements, (count,)))
            assert read_strings(blank.value).content == EncodedStrings.of(elements, (count,)).content
            blank.take_back()
            assert read_strings(blank.value).content == unwritten
        del blank
        gc.collect()


def test_only_so_many_bindings_are_kept_and_none_of_many_elements(blanks: list[BlankStrings]) -> None:
    rig = Rig(unary("Identity", ["n", "m"], TensorProto.STRING))

    def made(width: int) -> int:
        """How many blanks a run makes."""
        before = len(blanks)
        rig.sessions[0].run_arrays({0: StringTensor.of([b"x"] * width, (1, width))})
        return len(blanks) - before

    most = session_module.MAX_STRING_BINDINGS
    assert [made(width) for width in range(1, most + 9)] == [1] * (most + 8)
    assert [made(width) for width in range(9, most + 9)] == [0] * most
    assert made(8) == 1
    assert [made(5_000), made(5_000)] == [1, 1]
    assert made(most + 8) == 0  # and takes nobody's place


def test_outputs_of_a_known_form_stay_bound_and_no_answer_is_overwritten(blanks: list[BlankStrings]) -> None:
    """Of each number of rows, beside an input of numbers."""
    nodes = [
        helper.make_node("Cast", ["x"], ["of_x"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["of_x", "z"], ["y"]),
    ]
    inputs = [tensor("x", ["n", 2], TensorProto.STRING), tensor("z", ["n", 2])]
    rig = Rig(model(nodes, inputs, [tensor("y", ["n", 2])]))
    lane = rig.lane((2,), (2,))
    answers = []
    with rig.running():
        for turn in range(3):
            for rows in (1, 2, 3):
                context = turn, rows
                texts = np.full((rows, 2), str(100 * turn).encode(), object)
                rig.worker.add(context, lane, texts, np.full((rows, 2), rows, np.float32))
                rig.worker.end_round()
                answers.append((context, rig.worker.collect(context)[0]))
        for (turn, rows), answer in answers:
            assert answer.tolist() == [[100 * turn + rows] * 2] * rows
    assert len(blanks) == 3
    assert all(result.outputs is not None and result.outputs.fixed for result in rig.worker.seen)
    rig.assert_empty()


def test_sessions_of_several_threads_do_not_disturb_each_other() -> None:
    content = unary("Identity", ["n", 1], TensorProto.STRING)
    rig = Rig(content, executors=4)
    wrong: list[Any] = []

    def work(number: int) -> None:
        elements = [bytes([number]) * (10 + at) for at in range(20)]
        for _ in range(200):
            (output,) = rig.sessions[number].run_arrays({0: StringTensor.of(elements, (20, 1))})
            assert isinstance(output, EncodedStrings)
            if output.content != EncodedStrings.of(elements, (20, 1)).content:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- where the layout is another -------------------------------------------------------------------------------------


def test_another_layout_is_noticed_without_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    string_tensors.problem.cache_clear()
    try:
        # As if a string were three words: what is read are parts of several.
        monkeypatch.setattr(string_tensors, "_SIZE", 24)
        monkeypatch.setattr(ctypes, "memmove", None)
        assert string_tensors.problem() == "an empty string does not point to memory of its own"
    finally:
        string_tensors.problem.cache_clear()


def test_runs_that_change_bytes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    string_tensors.problem.cache_clear()
    try:
        monkeypatch.setattr(BlankStrings, "lend", lambda blank, strings: None)
        assert string_tensors.problem() == "bytes are not the same after a run"
    finally:
        monkeypatch.undo()
        string_tensors.problem.cache_clear()


@pytest.fixture
def unusable(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An ONNX Runtime of another layout."""
    string_tensors.usable.cache_clear()
    monkeypatch.setattr(string_tensors, "problem", lambda: "they are odd")
    yield
    string_tensors.usable.cache_clear()


@pytest.mark.usefixtures("unusable")
def test_texts_go_through_str_where_bytes_cannot(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rig = Rig(unary("Identity", ["n", 1], TensorProto.STRING))
    assert "BYTES can only be UTF-8" in caplog.text
    assert "they are odd" in caplog.text
    with rig.running():
        rig.wait_idle()
        rig.worker.add("a", rig.lane((1,)), objects("ż".encode(), b"a longer text, of many letters"))
        rig.worker.add("b", rig.lane((1,)), objects(b"fine", b"\xff"))
        rig.worker.end_round()
        a, b = rig.worker.collect("a", "b")
    assert a.tolist() == [["ż".encode()], [b"a longer text, of many letters"]]
    assert isinstance(b, InvalidRequest)
    assert str(b) == (
        "string element 1 of inference input 'x' for model 'm' is not valid UTF-8 (invalid start byte at byte 0); "
        "this server's ONNX Runtime takes no other strings"
    )
