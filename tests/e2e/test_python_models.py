"""Python models: what ``TritonPythonModel`` is given, what it may answer, and what clients see of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.testing as npt
import pytest

from tests.e2e import python_models
from tests.e2e.process import ServerProcess, running
from tests.ensembles import add_ensemble, pbtxt, step
from tests.waiting import wait_until

triton = pytest.importorskip("tritonclient.grpc", reason="has no wheel for free-threaded Python")
triton_http = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils", reason="has no wheel for free-threaded Python")

ABOUT = """
def initialize(self, args):
    self.args = args

def execute(self, requests):
    import json
    responses = []
    for request in requests:
        about = {
            "id": request.request_id(), "outputs": sorted(request.requested_output_names()),
            "parameters": json.loads(request.parameters()), "cancelled": request.is_cancelled(),
            "correlation": request.correlation_id(), "flags": request.flags(), "timeout": request.timeout(),
            "args": self.args, "requests": len(requests), "dir": pb_utils.get_model_dir(),
        }
        text = np.array([json.dumps(about).encode()], np.object_)
        responses.append(answer(request, np.repeat(text, len(input_of(request))).reshape(-1, 1)))
    return responses
"""
ERRORS = """
def execute(self, requests):
    responses = []
    for request in requests:
        code = int(input_of(request)[0, 0])
        error = pb_utils.TritonError("as asked") if code < 0 else pb_utils.TritonError("as asked", code)
        good = answer(request, input_of(request))
        responses.append(good if code > 7 else pb_utils.InferenceResponse(output_tensors=[], error=error))
    return responses
"""
#: What ``execute`` returns, by the first number of the request, and what the client hears of it.
WRONG = {
    "too few": ("[]", "InferenceRequest\\(s\\) size is:1, and InferenceResponse\\(s\\) size is:0"),
    "none": ("None", "Expected a list in the execute return, found type '<class 'NoneType'>'"),
    "no responses": ("[3]", "Expected an 'InferenceResponse' object"),
    "a name error": ("lorem_ipsum", "NameError: name 'lorem_ipsum' is not defined\n\nAt:\n  1/model.py\\("),
    "wrong shape": ("[answer(r, input_of(r)[:, :2]) for r in requests]", "output 'y' as FP32 \\[1, 2\\]"),
    "wrong type": ("[answer(r, input_of(r).astype('f8')) for r in requests]", "output 'y' as FP64"),
    "missing output": ("[pb_utils.InferenceResponse([]) for r in requests]", "no output 'y'"),
    "no tensor": ("[pb_utils.InferenceResponse([3]) for r in requests]", "AttributeError|Expected a 'Tensor'"),
}
RETURNS = "\n".join(f"    if number == {at}:\n        return {what}" for at, (what, _) in enumerate(WRONG.values()))
WRONG_MODEL = f"def execute(self, requests):\n    number = int(input_of(requests[0])[0, 0])\n{RETURNS}\n"
STRINGS = """
def execute(self, requests):
    def double(array):
        return np.array([element + b'!' for element in array.ravel()], np.object_).reshape(array.shape)
    return [answer(request, double(input_of(request))) for request in requests]
"""
STACKED = """
def execute(self, requests):
    [request] = requests
    array = input_of(request)
    return [answer(request, array + len(array))]
"""
COMPLETING = """
@staticmethod
def auto_complete_config(config):
    config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [4]})
    config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [4]})
    config.set_max_batch_size(8)
    config.set_dynamic_batching()
    return config

async def execute(self, requests):
    return [answer(request, input_of(request) + 1) for request in requests]
"""
KEEPING = """
def initialize(self, args):
    self.kept = []

def execute(self, requests):
    self.kept += [input_of(request) for request in requests]
    return [answer(request, self.kept[max(0, len(self.kept) - 3)]) for request in requests]
"""
ALONE = """
def execute(self, requests):
    [request] = requests
    if input_of(request)[0, 0] < 0:
        raise ValueError("negative")
    return [answer(request, input_of(request))]
"""
#: By the first number of a request, how it is answered.
SENDING = """
def execute(self, requests):
    import threading
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    responses = []
    for request in requests:
        number = int(input_of(request)[0, 0])
        good = answer(request, input_of(request))
        responses.append(None)
        sender = request.get_response_sender()
        if number == 0:
            sender.send(good, flags=final)
        elif number == 1:
            def later(sender=sender, good=good):
                time.sleep(0.05)
                sender.send(good)
                sender.send(flags=final)
            threading.Thread(target=later).start()
        elif number == 2:
            sender.send(good, flags=final)
            responses[-1] = answer(request, input_of(request) * 0)
        elif number == 3:
            sender.send(good)
            for arguments in ({"response": good}, {"response": good, "flags": 7}, {}):
                try:
                    sender.send(**arguments)
                except pb_utils.TritonModelException:
                    sender.send(flags=final) if not arguments else None
        elif number == 4:
            sender.send(flags=final)
        elif number == 5:
            sender.send(good, flags=final)
            raise ValueError("after it was sent")
    return responses
"""
OPTIONAL = """
def execute(self, requests):
    given = [pb_utils.get_input_tensor_by_name(request, "b") for request in requests]
    return [answer(r, input_of(r) + (0 if b is None else b.as_numpy())) for r, b in zip(requests, given)]
"""
BFLOAT = """
def execute(self, requests):
    responses = []
    for request in requests:
        tensor = pb_utils.get_input_tensor_by_name(request, "x")
        try:
            tensor.as_numpy()
        except pb_utils.TritonModelException:
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("y", tensor.to_dlpack())]))
    return responses
"""


#: Its response has parameters, if the request has any: what is in them, by the first number of the request.
NOTING = """
GIVEN = ({"wide": True, "colour": "red", "size": -3}, {"size": 2**63}, {"text": chr(0xd800)}, {})

def execute(self, requests):
    return [
        answer(r, input_of(r), parameters=self.GIVEN[int(input_of(r)[0, 0]) % 4] if r.parameters() != "{}" else None)
        for r in requests
    ]
"""
#: Calls "about", or "noting", with what a call may say beside its tensors.
HANDING_ON = """
def execute(self, requests):
    said = dict(request_id="r7", correlation_id="s", flags=2, timeout=3, parameters={"colour": "blue"})
    responses = []
    for request in requests:
        x = pb_utils.Tensor("x", input_of(request))
        about, noted = (
            pb_utils.InferenceRequest(model_name=model, requested_output_names=["y"], inputs=[x], **said).exec()
            for model in ("about", "noting")
        )
        if about.has_error() or noted.has_error():
            raise ValueError((about.error() or noted.error()).message())
        text = pb_utils.get_output_tensor_by_name(about, "y").as_numpy()[0, 0].decode()
        responses.append(answer(request, input_of(request), parameters={"about": text, "noted": noted.parameters()}))
    return responses
"""


@pytest.fixture(scope="module", params=["process", "thread"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    add_model = partial(python_models.add_model, isolation=request.param)
    add_model(root, "identity")
    add_model(root, "large", dims="[ 300000 ]")
    add_model(root, "open", dims="[ -1 ]")
    add_model(root, "about", ABOUT, datatype="FP32", tensors=False, more=_ABOUT_TENSORS + "dynamic_batching {}")
    add_model(root, "errors", ERRORS)
    add_model(root, "strings", STRINGS, datatype="STRING", dims="[ -1 ]")
    add_model(root, "stacked", STACKED, more=_STACKED)
    add_model(root, "stacked_strings", STRINGS, datatype="STRING", dims="[ -1 ]", more=_STACKED)
    (add_model(root, "completing", COMPLETING, tensors=False) / "config.pbtxt").unlink()
    add_model(root, "keeping", KEEPING)
    add_model(root, "alone", ALONE, more="")
    add_model(
        root,
        "unbatched",
        "def execute(self, requests):\n    return [answer(r, input_of(r) * 2) for r in requests]",
        rows=0,
    )
    add_model(root, "optional", OPTIONAL, more=_OPTIONAL)
    add_model(root, "sending", SENDING, more="")
    add_model(root, "bfloat", BFLOAT, datatype="BF16")
    add_model(root, "wrong", WRONG_MODEL, more=_STRICT)
    add_model(root, "noting", NOTING)
    add_model(root, "stacked_noting", NOTING.replace('if r.parameters() != "{}" else None', ""), more=_STACKED)
    add_model(root, "handing_on", HANDING_ON)
    about = [step("about", "x=IN", "y=OUT")]
    add_ensemble(root, "told", pbtxt(["IN FP32 [4]"], ["OUT STRING [1]"], about))
    add_ensemble(root, "told_twice", pbtxt(["IN FP32 [4]"], ["OUT STRING [1]"], [step("told", "IN=IN", "OUT=OUT")]))
    with running(root, tmp_path_factory.mktemp("log"), flags=["--processing-cores", "1"]) as process:
        yield process


_STRICT = 'dynamic_batching {} parameters { key: "toutates.strict_outputs" value { string_value: "true" } }'
_STACKED = 'dynamic_batching {} parameters { key: "toutates.stacked" value { string_value: "true" } }'
_OPTIONAL = 'dynamic_batching {} input [ { name: "b" data_type: TYPE_FP32 dims: [ 4 ] optional: true } ]'
_ABOUT_TENSORS = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as own:
        yield own


def tensor_of(rows: Any, name: str = "x", datatype: str | None = None) -> Any:
    tensor = triton.InferInput(name, list(rows.shape), datatype or utils.np_to_triton_dtype(rows.dtype))
    tensor.set_data_from_numpy(rows)
    return tensor


def ask(client: Any, model: str, rows: Any, **more: Any) -> Any:
    return client.infer(model, [tensor_of(rows)], **more).as_numpy("y")


def rows_of(count: int, columns: int = 4) -> Any:
    return np.arange(count * columns, dtype=np.float32).reshape(count, columns)


@pytest.mark.parametrize("count", [1, 8, 19])
def test_an_identity_returns_what_it_is_sent(client: Any, count: int) -> None:
    npt.assert_array_equal(ask(client, "identity", rows_of(count)), rows_of(count))


def test_requests_of_many_clients_are_batched_and_each_gets_its_own_rows(client: Any) -> None:
    def one(number: int) -> None:
        rows = rows_of(number % 3 + 1) + number
        npt.assert_array_equal(ask(client, "identity", rows), rows)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(200)))


def test_tensors_of_a_megabyte_and_more(client: Any) -> None:
    rows = np.random.default_rng(1).random((3, 300_000), np.float32)
    for _ in range(2):
        npt.assert_array_equal(ask(client, "large", rows), rows)


@pytest.mark.parametrize("columns", [1, 3, 70_000])
def test_shapes_that_the_configuration_leaves_open(client: Any, columns: int) -> None:
    npt.assert_array_equal(ask(client, "open", rows_of(2, columns)), rows_of(2, columns))


def test_a_model_sees_what_a_request_says_beside_its_tensors(client: Any, server: ServerProcess) -> None:
    for identifier in ("first", "second"):
        [[text]] = ask(
            client,
            "about",
            rows_of(1),
            request_id=identifier,
            parameters={"colour": "red", "size": 3, "wide": True},
            timeout=120_000_000,
            sequence_id=7,
            sequence_start=True,
        )
        about = json.loads(text)
        args = about.pop("args")
        assert about.pop("dir").endswith("/about/1")
        assert about == {
            "id": identifier,
            "outputs": ["y"],
            "parameters": {"colour": "red", "size": 3, "wide": True},
            "cancelled": False,
            "correlation": 7,
            "flags": 1,
            "timeout": 120_000_000,
            "requests": 1,
        }
        config = json.loads(args.pop("model_config"))
        assert (config["name"], config["max_batch_size"], config["input"][0]["dims"]) == ("about", 8, [4])
        assert args.pop("model_repository").endswith("/about")
        assert args == {
            "model_instance_kind": "CPU",
            "model_instance_name": "about_0",
            "model_instance_device_id": "0",
            "model_version": "1",
            "model_name": "about",
        }
    assert "which has no effect" not in server.log


def test_parameters_of_a_response_reach_its_client(client: Any, server: ServerProcess) -> None:
    given = {"wide": True, "colour": "red", "size": -3}
    with triton_http.InferenceServerClient(server.address) as http:
        for model, rows in (("noting", rows_of(1)), ("noting", rows_of(19)), ("stacked_noting", rows_of(3))):
            for _ in range(2):
                plain, noted = [
                    client.infer(model, [tensor_of(rows)], parameters=parameters) for parameters in (None, {"a": 1})
                ]
                npt.assert_array_equal(noted.as_numpy("y"), rows)
                values = {key: getattr(one, one.WhichOneof("parameter_choice")) for key, one in parameters_of(noted)}
                assert values == given
                assert bool(parameters_of(plain)) is (model == "stacked_noting")
                for binary in (False, True):
                    tensor = triton_http.InferInput("x", list(rows.shape), "FP32")
                    tensor.set_data_from_numpy(rows, binary_data=binary)
                    output = [triton_http.InferRequestedOutput("y", binary_data=binary)]
                    plain, noted = [
                        http.infer(model, [tensor], outputs=output, parameters=parameters)
                        for parameters in (None, {"a": 1})
                    ]
                    npt.assert_array_equal(noted.as_numpy("y"), rows)
                    assert noted.get_response()["parameters"] == given
                    assert ("parameters" in plain.get_response()) is (model == "stacked_noting")


def parameters_of(result: Any) -> Any:
    return list(result.get_response().parameters.items())


def test_parameters_that_cannot_be_sent_are_an_error(client: Any) -> None:
    with pytest.raises(utils.InferenceServerException, match="'size', which is no integer"):
        ask(client, "noting", np.full((1, 4), 1, np.float32), parameters={"a": 1})


def test_calls_hand_on_what_they_say_and_bring_parameters_back(client: Any) -> None:
    response = client.infer("handing_on", [tensor_of(rows_of(1))])
    told = {key: json.loads(one.string_param) for key, one in parameters_of(response)}
    assert told["noted"] == {"wide": True, "colour": "red", "size": -3}
    about = {"id": "r7", "correlation": "s", "flags": 2, "timeout": 3, "parameters": {"colour": "blue"}}
    assert {key: told["about"][key] for key in about} == about


@pytest.mark.parametrize("ensemble", ["told", "told_twice"])
def test_steps_of_an_ensemble_are_told_what_its_request_says(client: Any, server: ServerProcess, ensemble: str) -> None:
    def one(number: int) -> None:
        identifier, colour = f"n{number}" * (number % 3 > 0), "red" if number % 2 else "blue"
        result = client.infer(
            ensemble,
            [tensor_of(rows_of(1), "IN")],
            request_id=identifier,
            parameters={"colour": colour},
            timeout=number + 1,
            sequence_id="s",
            sequence_end=True,
        )
        [[text]] = result.as_numpy("OUT")
        about = json.loads(text)
        expected = {"id": identifier, "correlation": "s", "flags": 2, "timeout": number + 1}
        assert about | expected | {"parameters": {"colour": colour}} == about

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))
    assert "which has no effect" not in server.log


@pytest.mark.parametrize(
    ("code", "status"),
    list(
        enumerate(
            [
                "UNKNOWN",
                "INTERNAL",
                "NOT_FOUND",
                "INVALID_ARGUMENT",
                "UNAVAILABLE",
                "UNIMPLEMENTED",
                "ALREADY_EXISTS",
                "CANCELLED",
            ]
        )
    ),
)
def test_each_code_of_an_error_has_its_status(client: Any, code: int, status: str) -> None:
    with pytest.raises(utils.InferenceServerException, match="as asked") as error:
        ask(client, "errors", np.full((1, 4), code, np.float32))
    assert error.value.status() == f"StatusCode.{status}"


def test_an_error_fails_its_own_request_only(client: Any) -> None:
    def one(code: int) -> bool:
        try:
            ask(client, "errors", np.full((1, 4), code, np.float32))
        except utils.InferenceServerException:
            return False
        return True

    codes = [9, 1] * 20
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, codes)) == [code == 9 for code in codes]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_internal_errors_with_a_sentence(client: Any, name: str) -> None:
    with pytest.raises(utils.InferenceServerException, match=WRONG[name][1]) as error:
        ask(client, "wrong", np.full((1, 4), list(WRONG).index(name), np.float32))
    assert error.value.status() == "StatusCode.INTERNAL"


def test_what_is_raised_has_tritons_frame(client: Any) -> None:
    with pytest.raises(utils.InferenceServerException) as error:
        ask(client, "wrong", np.full((1, 4), list(WRONG).index("a name error"), np.float32))
    assert str(error.value.message()).startswith("Failed to process the request(s) for model 'wrong_0', message: ")


@pytest.mark.parametrize("model", ["strings", "stacked_strings"])
def test_strings(client: Any, model: str) -> None:
    def one(number: int) -> None:
        rows = np.array([[f"é{number}-{row}".encode(), b""] for row in range(number % 4 + 1)], np.object_)
        wanted = np.array([[element + b"!" for element in row] for row in rows], np.object_)
        npt.assert_array_equal(ask(client, model, rows), wanted)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))


def test_a_stacked_model_gets_one_array_of_all_rows(client: Any) -> None:
    def one(number: int) -> None:
        rows = rows_of(2) + number
        added = ask(client, "stacked", rows) - rows
        assert added.min() == added.max()
        assert 2 <= added[0, 0] <= 8

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))


def test_a_model_without_a_configuration_completes_it(client: Any) -> None:
    npt.assert_array_equal(ask(client, "completing", rows_of(2)), rows_of(2) + 1)
    config = client.get_model_config("completing").config
    assert (config.backend, config.max_batch_size, config.input[0].name) == ("python", 8, "x")
    assert config.HasField("dynamic_batching")


def test_an_array_that_a_model_keeps_is_not_written_over(client: Any) -> None:
    sent = [rows_of(1) + number for number in range(12)]
    for number, rows in enumerate(sent):
        npt.assert_array_equal(ask(client, "keeping", rows), sent[max(0, number - 2)])


def test_without_dynamic_batching_a_model_sees_each_request_alone(client: Any) -> None:
    def one(number: int) -> None:
        rows = rows_of(1) + 1 - (number % 2) * 100
        if number % 2:
            with pytest.raises(utils.InferenceServerException, match="ValueError: negative"):
                ask(client, "alone", rows)
        else:
            npt.assert_array_equal(ask(client, "alone", rows), rows)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))


def test_a_model_without_a_batch(client: Any) -> None:
    npt.assert_array_equal(ask(client, "unbatched", rows_of(1)[0]), rows_of(1)[0] * 2)


def test_an_optional_input_may_be_left_out_of_a_batch(client: Any) -> None:
    both = [tensor_of(rows_of(2)), tensor_of(rows_of(2), "b")]
    npt.assert_array_equal(client.infer("optional", both).as_numpy("y"), rows_of(2) * 2)
    npt.assert_array_equal(ask(client, "optional", rows_of(2)), rows_of(2))


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5])
def test_a_response_may_be_sent_by_a_sender(client: Any, number: int) -> None:
    rows = np.full((1, 4), number, np.float32)
    npt.assert_array_equal(ask(client, "sending", rows), rows)


def test_a_final_flag_without_a_response_is_an_error(client: Any) -> None:
    with pytest.raises(utils.InferenceServerException, match="cannot send complete final before sending a response"):
        ask(client, "sending", np.full((1, 4), 4, np.float32))


def test_bfloat16_goes_by_dlpack(client: Any) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    rows = np.array([[1.0, -2.5, 3.0, 0.0]], bfloat16)
    answer = client.infer("bfloat", [tensor_of(rows, datatype="BF16")])
    assert answer.get_response().raw_output_contents[0] == rows.tobytes()


def test_statistics_count_requests_and_executions(client: Any) -> None:
    def read() -> tuple[int, int, int]:
        [own] = client.get_inference_statistics("unbatched").model_stats
        return own.inference_stats.success.count, own.inference_count, own.execution_count

    before = read()
    for _ in range(3):
        ask(client, "unbatched", rows_of(1)[0])
    wait_until(lambda: read() == tuple(number + 3 for number in before))
