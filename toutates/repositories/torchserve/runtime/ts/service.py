"""Finds the entry point of a handler, reads requests for it, and makes answers of what it returns or raises."""

from __future__ import annotations

import importlib
import io
import json
import sys
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ts import __version__
from ts.context import Context
from ts.forms import read_body
from ts.utils.util import PredictionException, list_classes_from_module

__all__ = ["Result", "Service"]

Handle = Callable[[Any, Context], Any]


class Result(NamedTuple):
    """The answer to one request.

    Attributes:
        status: of HTTP.
        body: in full; the error's text where it has failed.
        fields: header fields that the handler has set.
        request_id: the request's.
        failed: whether there is no answer of the handler. One with a status of its choice is an answer.
    """

    status: int
    body: bytes
    fields: dict[str, str]
    request_id: str
    failed: bool = False

    def head(self) -> bytes:
        """Status and header fields, as a JSON object."""
        document = {"status": self.status, "id": self.request_id, "failed": self.failed, "fields": self.fields}
        return json.dumps(document).encode()


class Service:
    """One handler, loaded.

    Args:
        version_dir: holds ``torchserve.json`` and the directory ``archive``.
        gpu: number of the GPU that it is to use; None for the CPU.
        batch_size: requests that it gets at once, at most.

    Raises:
        Exception: of any kind: the handler cannot be loaded.
    """

    def __init__(self, version_dir: Path, gpu: int | None = None, batch_size: int = 1) -> None:
        description = json.loads((version_dir / "torchserve.json").read_text(encoding="utf-8"))
        archive = version_dir / "archive"
        self.context = Context(
            model_name=description["model"],
            model_dir=str(archive),
            manifest=description["manifest"],
            batch_size=batch_size,
            gpu=gpu,
            mms_version=__version__,
            model_yaml_config=description["config"],
        )
        if str(archive) not in sys.path:
            sys.path.insert(0, str(archive))
        self._handle = _entry_point(description["module"], description["function"], self.context)

    def answer(self, rows: list[tuple[bytes, bytes]]) -> list[Result]:
        """The answers to a batch of requests, in their order.

        Args:
            rows: of each request its body, and its header fields as a JSON object, or nothing.
        """
        ids = [str(uuid.uuid4()) for _ in rows]
        results: list[Result | None] = [None] * len(rows)
        data: list[Any] = []
        heads: list[dict[str, str]] = []
        asked: list[int] = []
        for index, (body, head) in enumerate(rows):
            try:
                fields = {str(key).lower(): str(value) for key, value in json.loads(head).items()} if head else {}
                row = read_body(body, fields.get("content-type", ""))
            except Exception as error:
                results[index] = Result(
                    400, f"the request's body cannot be read: {error}".encode(), {}, ids[index], failed=True
                )
                continue
            data.append(row)
            heads.append(fields)
            asked.append(index)
        if asked:
            for index, result in zip(asked, self._ask(data, heads, [ids[index] for index in asked]), strict=True):
                results[index] = result
        return [result for result in results if result is not None]

    def _ask(self, data: list[Any], heads: list[dict[str, str]], ids: list[str]) -> list[Result]:
        context = self.context
        context.begin(ids, heads)

        def all_fail(status: int, text: str) -> list[Result]:
            return [Result(status, text.encode(), {}, identifier, failed=True) for identifier in ids]

        try:
            returned = self._handle(data, context)
        except PredictionException as error:
            return all_fail(error.error_code, error.message)
        except MemoryError:
            traceback.print_exc()
            return all_fail(507, "Out of resources")
        except Exception as error:
            traceback.print_exc()
            return all_fail(507, "Out of resources") if "CUDA" in str(error) else all_fail(503, "Prediction failed")
        if not isinstance(returned, list):
            return all_fail(503, "Invalid model predict output")
        if len(returned) != len(data):
            return all_fail(503, "number of batch response mismatched")
        results = []
        for index, (value, identifier) in enumerate(zip(returned, ids, strict=True)):
            status, _ = context.get_response_status(index)
            try:
                body = _encoded(value)
            except Exception:
                traceback.print_exc()
                results.append(Result(503, b"Unsupported model output data type.", {}, identifier, failed=True))
            else:
                results.append(Result(status, body, context.get_response_headers(index), identifier))
        return results


def _entry_point(name: str, function: str, context: Context) -> Handle:
    """What is to be called for each batch; it has been told of the context."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(f"Unable to load module {name}, make sure it is added to python path") from error
    called: Handle | None = getattr(module, function or "handle", None)
    if called is not None and callable(called):
        called(None, context)
        return called
    return _service_of(module, context)


def _service_of(module: ModuleType, context: Context) -> Handle:
    classes = list_classes_from_module(module)
    if len(classes) != 1:
        found = [one.__name__ for one in classes]
        raise ValueError(f"Expected only one class in custom service code or a function entry point {found}")
    service: Any = classes[0]()
    handle = getattr(service, "handle", None)
    if handle is None or not callable(handle):
        raise ValueError(f"Expect handle method in class {classes[0]}")
    service.context = context
    service.initialize(context)
    bound: Handle = handle
    return bound


def _encoded(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return buffer.getvalue()
    return json.dumps(value, indent=2, ensure_ascii=False).encode()
