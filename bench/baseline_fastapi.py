"""FastAPI on uvicorn: the REST server that most Python teams would write, for the benchmark's models.

It is written as one would who cares for speed: uvloop and httptools, one process, a pydantic model that reads JSON as
it came, orjson that writes NumPy arrays, the session run in the event loop. Tensors are flat arrays of JSON, or binary
data behind it (``Inference-Header-Content-Length``). There is no batching, and no validation beyond pydantic's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import orjson
import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel

_DTYPES = {"FP32": np.dtype("<f4"), "INT32": np.dtype("<i4")}


class Tensor(BaseModel):  # type: ignore[misc]  # not installed where types are checked
    """An input of a request."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[float] | None = None


class Output(BaseModel):  # type: ignore[misc]  # not installed where types are checked
    """An output that a request asks for."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(BaseModel):  # type: ignore[misc]  # not installed where types are checked
    """The JSON of a request."""

    id: str | None = None
    inputs: list[Tensor]
    outputs: list[Output] = []


def make_app(repository: Path) -> FastAPI:
    """The application.

    Args:
        repository: folder of NAME/1/model.onnx.
    """
    app = FastAPI()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    sessions = {
        path.parent.parent.name: ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for path in sorted(repository.glob("*/1/model.onnx"))
    }

    def session_of(name: str) -> ort.InferenceSession:
        if name not in sessions:
            raise HTTPException(404, f"there is no model {name}")
        return sessions[name]

    @app.get("/v2/models/{name}/ready")  # type: ignore[untyped-decorator]
    async def ready(name: str) -> Response:
        session_of(name)
        return Response()

    @app.post("/v2/models/{name}/infer")  # type: ignore[untyped-decorator]
    async def infer(
        name: str, request: Request, inference_header_content_length: int | None = Header(default=None)
    ) -> Response:
        session = session_of(name)
        body = await request.body()
        json_end = len(body) if inference_header_content_length is None else inference_header_content_length
        asked = InferRequest.model_validate_json(body[:json_end])
        arrays = session.run(None, _feed(asked, body, json_end))
        names = [output.name for output in session.get_outputs()]
        binary = {output.name for output in asked.outputs if output.parameters.get("binary_data")}
        return _answer(name, asked.id, dict(zip(names, arrays, strict=True)), binary)

    return app


def _feed(asked: InferRequest, body: bytes, at: int) -> dict[str, Any]:
    feed = {}
    for tensor in asked.inputs:
        dtype = _DTYPES[tensor.datatype]
        if tensor.data is not None:
            array = np.array(tensor.data, dtype)
        else:
            size = tensor.parameters["binary_data_size"]
            array = np.frombuffer(body, dtype, size // dtype.itemsize, at)
            at += size
        feed[tensor.name] = array.reshape(tensor.shape)
    return feed


def _answer(name: str, identifier: str | None, arrays: dict[str, Any], binary: set[str]) -> Response:
    outputs: list[dict[str, Any]] = []
    contents = []
    for output, array in arrays.items():
        one: dict[str, Any] = {"name": output, "datatype": "FP32", "shape": array.shape}
        if output in binary:
            contents.append(array.tobytes())
            one["parameters"] = {"binary_data_size": array.nbytes}
        else:
            one["data"] = array.ravel()
        outputs.append(one)
    document: dict[str, Any] = {"model_name": name, "model_version": "1", "outputs": outputs}
    if identifier is not None:
        document["id"] = identifier
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    if not contents:
        return Response(text, media_type="application/json")
    fields = {"Inference-Header-Content-Length": str(len(text))}
    return Response(b"".join((text, *contents)), headers=fields, media_type="application/octet-stream")


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-repository", type=Path, required=True)
    parser.add_argument("--http-addr", required=True)
    arguments = parser.parse_args()
    host, _, port = arguments.http_addr.rpartition(":")
    uvicorn.run(
        make_app(arguments.model_repository),
        host=host,
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
