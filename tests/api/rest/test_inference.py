"""An inference over REST, without HTTP: from a body by a plan and a batch to an answer, as a server joins the parts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import trio

from tests.api.support import put, serving
from tests.protocol.rest.support import compact, tensor
from toutates.api.dataplane.plane import DataPlane
from toutates.api.rest.answers import Answer, refusal
from toutates.api.rest.endpoints import find_route
from toutates.engine.result import BatchResult
from toutates.engine.servable import Consumer
from toutates.infer.plan import Plan
from toutates.infer.validation import validate
from toutates.protocol.rest.cutting import cut
from toutates.protocol.rest.lengths import RAW, json_length
from toutates.protocol.rest.raw_request import RAW_OUTPUTS, read_raw_request
from toutates.protocol.rest.request import Form, OutputForms, Target, read_request
from toutates.protocol.rest.response import ResponseTemplate
from toutates.system.errors import RequestError

LIMIT = 64 * 1024 * 1024
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


class Joined:
    """The least that a worker has to do."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.known: dict[bytes, tuple[Plan, Form]] = {}
        self.by_form = 0

    async def infer(self, path: str, body: bytes, header: str | None = None) -> Answer:
        try:
            return await self._infer(path, body, header)
        except RequestError as error:
            return refusal(error)

    async def _infer(self, path: str, body: bytes, header: str | None) -> Answer:
        route = find_route(path)
        assert route is not None
        json_end = json_length(header, len(body))
        target = Target(route.model, route.version, LIMIT)
        if json_end == RAW:
            version = self.plane.get_table().find(target.model, target.version)
            message, content = read_raw_request(body, target, version.signature)
            plan = await self._plan(message, [len(content)], target)
            return await self._run(plan, RAW_OUTPUTS, b"", bytes(content), (0, len(content)))
        found = cut(body, 0, json_end)
        if found is not None and path.encode() + found[0] in self.known:
            plan, form = self.known[path.encode() + found[0]]
            read = form.read(found, body, json_end, len(body))
            if read is not None:
                self.by_form += 1
                return await self._run(plan, form.outputs, form.identifier_of(found, body), *read)
        request = read_request(body, 0, json_end, len(body), target, found)
        sizes = [len(content) for content in request.contents]
        plan = await self._plan(request.message, sizes, target)
        if request.key is not None:
            self.known[path.encode() + request.key] = plan, request.form
        buffer = b"".join(request.contents)
        bounds = np.cumsum([0, *sizes]).tolist()
        spans = [bound for start, end in pairwise(bounds) for bound in (start, end)]
        return await self._run(plan, request.form.outputs, request.identifier, buffer, spans)

    async def _plan(self, message: Any, sizes: list[int], target: Target) -> Plan:
        version = self.plane.get_table().find(target.model, target.version)
        validated = validate(message, sizes, version.signature, version.model)
        token = trio.lowlevel.current_trio_token()

        def finish_soon(result: BatchResult) -> None:
            token.run_sync_soon(self._finish, result)

        port = version.servable.port(Consumer(finish_soon, self._finish, lambda callback: None))
        return Plan(version, validated, port)

    async def _run(self, plan: Plan, outputs: OutputForms, identifier: bytes, buffer: bytes, spans: Any) -> Answer:
        done = trio.Event()
        results: list[tuple[BatchResult, int]] = []

        def finish(result: BatchResult, first: int) -> None:
            results.append((result, first))
            done.set()

        assert plan.packed is not None
        plan.port.add_packed(plan.packed, plan.rows, finish, buffer, spans)
        plan.port.commit()
        with trio.fail_after(120):
            await done.wait()
        ((result, first),) = results
        ran = result.outputs
        assert ran is not None
        indices = plan.request.outputs
        tensors = [plan.wire_tensor(index, ran.row_shapes[index], plan.rows) for index in indices]
        sizes = [ran.row_bytes[index] * plan.rows for index in indices]
        binary = [outputs.is_binary(tensor.name) for tensor in tensors]
        template = ResponseTemplate(plan.version.model, str(plan.version.number), tensors, binary, sizes)
        contents = [
            bytes(ran.data[index][first * ran.row_bytes[index] :][:size])  # type: ignore[index]
            for index, size in zip(indices, sizes, strict=True)
        ]
        response = template.write(identifier, contents)
        return Answer(200, response.fields, b"".join(response.pieces))

    def _finish(self, result: BatchResult) -> None:
        for context, first, _, _ in result.pending:
            context(result, first)


def joined(root: Path, check: Callable[[Joined], Awaitable[None]]) -> None:
    put(root, "double")

    async def run() -> None:
        async with serving(root) as plane:
            await check(Joined(plane))

    trio.run(run)


def body(values: Any, identifier: str = "", **members: Any) -> bytes:
    members = {"id": identifier, **members} if identifier else members
    return compact({**members, "inputs": [tensor("x", "FP32", list(values.shape), values.tolist())]})


def test_json_is_answered_with_json(tmp_path: Path) -> None:
    async def check(server: Joined) -> None:
        for at in range(3):
            values = ROWS + at
            status, fields, answer = await server.infer("/v2/models/double/infer", body(values, f"id{at}"))
            assert (status, fields) == (200, b"content-type: application/json\r\n")
            assert json.loads(answer) == {
                "id": f"id{at}",
                "model_name": "double",
                "model_version": "1",
                "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 4], "data": (2 * values).ravel().tolist()}],
            }
        assert server.by_form == 2

    joined(tmp_path, check)


def test_binary_data_is_answered_with_binary_data(tmp_path: Path) -> None:
    async def check(server: Joined) -> None:
        for at in range(3):
            values = ROWS + at
            document = {
                "inputs": [tensor("x", "FP32", [2, 4], binary_data_size=32)],
                "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
            }
            text = compact(document)
            answer = await server.infer("/v2/models/double/versions/1/infer", text + values.tobytes(), str(len(text)))
            size = int(answer.fields.partition(b"inference-header-content-length: ")[2])
            assert json.loads(answer.body[:size])["outputs"][0]["parameters"] == {"binary_data_size": 32}
            assert answer.body[size:] == (2 * values).tobytes()
        assert server.by_form == 2

    joined(tmp_path, check)


def test_a_body_without_json_is_the_input(tmp_path: Path) -> None:
    async def check(server: Joined) -> None:
        answer = await server.infer("/v2/models/double/infer", ROWS[:1].tobytes(), "0")
        assert answer.body.endswith((2 * ROWS[:1]).tobytes())
        assert b'"shape":[1,4]' in answer.body

    joined(tmp_path, check)


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    async def check(server: Joined) -> None:
        path = "/v2/models/double/infer"
        for request, status, text in (
            (body(ROWS[:, :3]), 400, "unexpected shape for input 'x' for model 'double'. Expected [-1,4], got [2,3]"),
            (body(ROWS, outputs=[{"name": "z"}]), 400, "unexpected inference output 'z' for model 'double'"),
            (b"{}", 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
            (body(ROWS).replace(b"[2,4]", b"[2,5]"), 500, "Failed to parse 'data' field: shape does not match"),
        ):
            answer = await server.infer(path, request)
            assert answer.status == status
            assert text in json.loads(answer.body)["error"]
        answer = await server.infer("/v2/models/none/infer", body(ROWS))
        assert answer == Answer(
            404,
            b"content-type: application/json\r\n",
            b'{"error":"Request for unknown model: \'none\' is not found"}',
        )
        answer = await server.infer(path, body(ROWS), "abc")
        assert (answer.status, json.loads(answer.body)["error"]) == (
            400,
            "Unable to parse Inference-Header-Content-Length, got: abc",
        )

    joined(tmp_path, check)
