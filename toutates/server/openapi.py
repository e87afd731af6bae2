"""/openapi.json, /docs and /proto: the document, its page with the files of Swagger UI, and gRPC's .proto files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final
from weakref import ref

import trio

from toutates.access.pages import WebPages
from toutates.api.control_queue import ControlQueue
from toutates.api.doors import Doors
from toutates.api.rest.answers import error_answer
from toutates.api.rest.calls import RestHttpCall
from toutates.api.rest.kept_documents import Document, DocumentPage, DocumentSource, make_document
from toutates.api.rest.openapi.document import MODELS_GROUPS, DocumentWriter
from toutates.api.restrictions import RestrictedProtocol
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.observe.status.page import make_page
from toutates.protocol.proto_files import PROTO_NAMES, read_proto
from toutates.system.address import names_loopback
from toutates.system.errors import Forbidden

__all__ = ["OpenApiPages"]

#: Its files are read; it is not imported, because it would import Flask.
PACKAGE: Final = "flask_swagger_ui"
FILES: Final = {
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
}
_PLAIN: Final = "text/plain; charset=utf-8"
_NO_FILES: Final = error_answer(
    404, "/docs needs Swagger UI: pip install 'toutates[docs]'. The document that it shows is /openapi.json."
)

Handle = Callable[[RestHttpCall], None]


class OpenApiPages:
    """Has the documents of one server.

    Args:
        get_table: returns the table of models in force.
        secrets: by group, what its endpoints want of a request.
        max_input_bytes: of REST's settings.
        queue: brings requests to the main thread.
        callers_are_known: whether callers may do different things, so that models are left out.
        web: knows the names by which callers on this machine may ask for /docs.

    Attributes:
        callers_are_known: as given.
    """

    def __init__(
        self,
        get_table: Callable[[], ModelTable],
        secrets: Mapping[str, RestrictedProtocol],
        max_input_bytes: int,
        queue: ControlQueue,
        *,
        callers_are_known: bool = False,
        web: WebPages | None = None,
    ) -> None:
        self._queue = queue
        self._doors = Doors(secrets, web=web)
        self.callers_are_known = callers_are_known
        headers = sorted({secrets[group].header for group in MODELS_GROUPS if group in secrets})
        vary = {"vary": ", ".join(headers)} if headers else {}
        self._whole = _OpenApi(DocumentWriter(secrets, max_input_bytes), get_table, vary)
        self._without_models = _OpenApi(DocumentWriter(secrets, max_input_bytes), _no_table, vary)
        folder = _folder()
        self._files: dict[str, DocumentSource] = {}
        if folder is not None:
            page = make_page(files(__package__).joinpath("docs.html").read_text(encoding="utf-8"), own_files=True)
            fields = {"content-security-policy": page.policy, "referrer-policy": "no-referrer"}
            self._files["/docs"] = _Fixed(lambda: page.html, "text/html; charset=utf-8", fields)
            for name, media_type in FILES.items():
                self._files[f"/docs/{name}"] = _Fixed((folder / name).read_bytes, media_type)
        self._protos = {f"/proto/{name}": _Fixed(partial(read_proto, name), _PLAIN) for name in PROTO_NAMES}

    def of(self, worker: Worker) -> Mapping[str, Handle]:
        """What answers GET and HEAD, by path."""
        page = partial(DocumentPage, worker, self._queue)
        pages: dict[str, Handle] = {path: page(source) for path, source in self._files.items()}
        if not pages:
            pages["/docs"] = lambda call: call.reply(*_NO_FILES)
        pages = {path: partial(self._by_name, worker, handle) for path, handle in pages.items()}
        pages |= {path: page(source) for path, source in self._protos.items()}
        whole, without_models = page(self._whole), page(self._without_models)

        def document(call: RestHttpCall) -> None:
            (whole if self._may_see_models(call.head.fields) else without_models)(call)

        return {"/openapi.json": document, **pages}

    def _by_name(self, worker: Worker, handle: Handle, call: RestHttpCall) -> None:
        """Answer a request; one from this machine has to come by a name that no foreign page has."""
        if names_loopback(worker.peer(call)):
            self._doors.web.check_host(call.head.fields)
        handle(call)

    def _may_see_models(self, fields: Mapping[str, str]) -> bool:
        try:
            for group in MODELS_GROUPS:
                self._doors.check_secret(group, fields)
        except Forbidden:
            return False
        return not self.callers_are_known


class _OpenApi:
    """A ``DocumentSource``: made again when the table of models is another.

    Args:
        writer: writes it, and nothing else.
        get_table: returns the table of models to describe; None for a document without models.
        fields: header fields.
    """

    def __init__(
        self, writer: DocumentWriter, get_table: Callable[[], ModelTable | None], fields: Mapping[str, str]
    ) -> None:
        self._writer = writer
        self._get_table = get_table
        self._fields = fields
        #: the last one made, and what returns its table as long as that is in use: kept here, a table would keep
        #: versions that are gone. Replaced by the main thread as a whole, read by all.
        self._made: tuple[Callable[[], ModelTable | None], Document] | None = None
        self._turn = trio.Lock()

    def current(self) -> Document | None:
        made = self._made
        return made[1] if made is not None and made[0]() is self._get_table() else None

    async def make(self) -> Document:
        async with self._turn:
            document = self.current()
            if document is None:
                table = self._get_table()
                document = await make_document(self._writer.write(table), "application/json", self._fields)
                self._made = _no_table if table is None else ref(table), document
            return document


def _no_table() -> None:
    return None


class _Fixed:
    """A ``DocumentSource`` whose document stays as it is.

    Args:
        read: returns its body.
        media_type: of the body.
        fields: header fields.
    """

    def __init__(
        self, read: Callable[[], bytes], media_type: str, fields: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._read = read
        self._media_type = media_type
        self._fields = fields
        self._made: Document | None = None

    def current(self) -> Document | None:
        return self._made

    async def make(self) -> Document:
        self._made = await make_document([self._read()], self._media_type, self._fields)
        return self._made


def _folder() -> Path | None:
    """Where Swagger UI's files are; None where the package is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "dist"
    return folder if all((folder / name).is_file() for name in FILES) else None
