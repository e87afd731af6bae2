"""The document: written in small pieces, so that whoever writes it can let others run in between.

It has every endpoint by the templates of its paths, and beside them the paths of inference for every model that can
answer, with its own tensors. Models of the same signature share what is said of them, so that ten thousand models of
a kind take 3 MB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

import msgspec

from toutates.api.rest.endpoints import ENDPOINTS, paths_of
from toutates.api.rest.openapi.models import ModelDescription, describe
from toutates.api.rest.openapi.operations import JSON, OPERATIONS, PAGES, TAGS, Operation, shared_schemas
from toutates.api.rest.openapi.text import TEXT_OPERATIONS
from toutates.api.restrictions import RestrictedProtocol
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion
from toutates.protocol.signature import Signature
from toutates.system.json_text import encode_json

__all__ = ["MODELS_GROUPS", "DocumentWriter"]

#: Groups whose endpoints tell the names of all models and their tensors. Whoever may use both may see them here.
MODELS_GROUPS: Final = ("model-repository", "metadata")

#: Bytes of all examples of a document; later ones are left out.
MAX_EXAMPLES_BYTES: Final = 8_388_608
#: Models, or signatures, in a piece.
PIECE: Final = 25

_VERSION: Final = "3.0.3"
_TITLE: Final = "Open Inference Protocol (v2) over HTTP"
_ERROR: Final = {"$ref": "#/components/responses/Error"}


class DocumentWriter:
    """Writes the document, again and again. Used in one thread.

    Args:
        secrets: by group, what its endpoints want of a request.
        max_input_bytes: of REST's settings; examples are no longer.
    """

    def __init__(self, secrets: Mapping[str, RestrictedProtocol], max_input_bytes: int) -> None:
        self._secrets = secrets
        self._max_input_bytes = max_input_bytes
        #: of the models that the last document had
        self._known: dict[Signature, ModelDescription] = {}

    def write(self, table: ModelTable | None) -> Iterator[bytes]:
        """The document in pieces, each of which takes about a millisecond.

        Args:
            table: its models; None for a document without any.
        """
        yield b'{"openapi":%b,"info":%b,"tags":%b,"paths":{' % (
            encode_json(_VERSION),
            encode_json({"title": _TITLE, "version": "2", "description": self._introduction(table)}),
            encode_json(
                [
                    {"name": name, "description": text}
                    for name, text in TAGS.items()
                    if table is not None or name != "models"
                ]
            ),
        )
        yield self._paths_text
        #: by signature, in the order in which they are met
        numbers: dict[Signature, int] = {}
        if table is not None:
            yield from self._models(table, numbers)
        yield b'},"components":{"schemas":%b' % self._schemas_text
        yield b',"responses":{"Error":' + encode_json(_answer("Refused.", {JSON: _reference("schemas", "Error")}))
        yield from self._signatures(numbers)
        schemes = {
            _scheme(one): {"type": "apiKey", "in": "header", "name": one.header} for one in self._secrets.values()
        }
        yield b',"securitySchemes":%b}}' % encode_json(schemes) if schemes else b"}}"

    def _introduction(self, table: ModelTable | None) -> str:
        if table is not None:
            return "Every endpoint of this server, and every model that it serves."
        headers = {self._secrets[group].header for group in MODELS_GROUPS if group in self._secrets}
        fields = ", ".join(f"`{header}`" for header in sorted(headers))
        return (
            "Every endpoint of this server. Its models are left out, because their names and tensors are restricted: "
            f"they are for requests for this document that have the header fields of those groups ({fields})."
        )

    @cached_property
    def _paths_text(self) -> bytes:
        return _members(self._paths())

    @cached_property
    def _schemas_text(self) -> bytes:
        return encode_json(shared_schemas())

    # --- endpoints ---------------------------------------------------------------------------------------------------

    def _paths(self) -> dict[str, Any]:
        paths: dict[str, Any] = {}
        for template, endpoint in ENDPOINTS:
            said = OPERATIONS[endpoint.name]
            for path in paths_of(template):
                names = re.findall(r"{(\w+)}", path)
                identifier = endpoint.name + ("_by_" + "_".join(names) if names else "")
                item = paths.setdefault(path, {})
                if names:
                    item["parameters"] = [
                        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
                    ]
                for method in sorted(endpoint.methods):
                    prefix = f"{method.lower()}_" if len(endpoint.methods) > 1 else ""
                    item[method.lower()] = self._operation(said, method, endpoint.category, prefix + identifier)
        for path, methods in TEXT_OPERATIONS.items():
            item = paths[path] = {}
            name = re.search(r"{(\w+)}", path)
            if name is not None:
                item["parameters"] = [{"name": name[1], "in": "path", "required": True, "schema": {"type": "string"}}]
            for method, said in methods.items():
                identifier = method + re.sub(r"\W+", "_", path)
                item[method] = self._operation(said, method.upper(), "text", identifier)
                item[method]["responses"]["default"] = {"description": "Refused, in the API's own form."}
        for path, said in PAGES.items():
            paths[path] = {"get": self._operation(said, "GET", "pages", "get" + re.sub(r"\W", "_", path))}
        return paths

    def _operation(self, said: Operation, method: str, group: str, identifier: str) -> dict[str, Any]:
        operation: dict[str, Any] = {"tags": [group], "summary": said.summary, "operationId": identifier}
        if said.text:
            operation["description"] = said.text
        if said.body is not None and method == "POST":
            content: dict[str, Any] = {kind: {"schema": schema} for kind, schema in said.body.schemas.items()}
            if said.body.example is not None:
                content[JSON]["example"] = said.body.example
            operation["requestBody"] = {"content": content, "required": said.body.required}
        operation["responses"] = {"200": _answer("The answer.", said.answers), "default": _ERROR}
        operation |= self._security(group)
        return operation

    def _security(self, group: str) -> dict[str, Any]:
        return {"security": [{_scheme(self._secrets[group]): []}]} if group in self._secrets else {}

    # --- models ------------------------------------------------------------------------------------------------------

    def _models(self, table: ModelTable, numbers: dict[Signature, int]) -> Iterator[bytes]:
        """The paths of models; adds their signatures to ``numbers``."""
        more = self._security("inference")
        piece: list[bytes] = []
        for model in table.models.values():
            for path, summary, version in _paths_of_model(model):
                number = numbers.setdefault(version.signature, len(numbers) + 1)
                operation = {
                    "tags": ["models"],
                    "summary": summary,
                    "requestBody": _reference("requestBodies", f"Infer{number}"),
                    "responses": {"200": _reference("responses", f"Infer{number}"), "default": _ERROR},
                    **more,
                }
                piece.append(b",%b:%b" % (encode_json(path), encode_json({"post": operation})))
            if len(piece) >= PIECE:
                yield b"".join(piece)
                piece = []
        yield b"".join(piece)

    def _signatures(self, numbers: Mapping[Signature, int]) -> Iterator[bytes]:
        """What is said of each signature: the rest of the responses, and the bodies of requests."""
        known: dict[Signature, ModelDescription] = {}
        for signature, number in numbers.items():
            said = known[signature] = self._known.get(signature) or describe(signature, self._max_input_bytes)
            answer = _answer("The outputs.", {JSON: msgspec.Raw(said.answer)})
            yield b',"Infer%d":%b' % (number, encode_json(answer))
        self._known = known
        yield b'},"requestBodies":{'
        room = MAX_EXAMPLES_BYTES
        comma = b""
        for signature, number in numbers.items():
            said = known[signature]
            content: dict[str, Any] = {"schema": msgspec.Raw(said.request)}
            body: dict[str, Any] = {"required": True, "content": {JSON: content}}
            room -= len(said.example)
            if said.example and room >= 0:
                content["example"] = msgspec.Raw(said.example)
            else:
                body["description"] = "An example would be too long here."
            yield b'%b"Infer%d":%b' % (comma, number, encode_json(body))
            comma = b","
        yield b"}"


def _paths_of_model(model: ModelEntry) -> Iterator[tuple[str, str, ServedVersion]]:
    """Of the versions that can answer: the path, what it does, and the version that answers there."""
    loaded = model.served()
    start = f"/v2/models/{quote(model.name, safe='')}"
    for version in loaded:
        if model.versions[version.number].state is not ModelState.READY:
            continue
        if version is loaded[-1]:
            yield f"{start}/infer", f"Run {model.name}", version
        if len(loaded) > 1:
            path = f"{start}/versions/{version.number}/infer"
            yield path, f"Run {model.name}, version {version.number}", version


def _members(members: Mapping[str, Any]) -> bytes:
    """The members of an object in JSON, without its braces."""
    return encode_json(members)[1:-1]


def _reference(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _answer(text: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": text}
    if schemas:
        answer["content"] = {kind: {"schema": schema} for kind, schema in schemas.items()}
    return answer


def _scheme(restriction: RestrictedProtocol) -> str:
    return ".".join(restriction.protocols)
