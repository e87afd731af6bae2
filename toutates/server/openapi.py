"""/openapi.json and /docs: what has the document, its page, and the files of Swagger UI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import trio

from toutates.api.control_queue import ControlQueue
from toutates.api.rest.answers import error_answer
from toutates.api.rest.calls import RestHttpCall
from toutates.api.rest.endpoints import restriction_answer
from toutates.api.rest.kept_documents import Document, DocumentPage, DocumentSource, make_document
from toutates.api.rest.openapi.document import DocumentWriter
from toutates.api.restrictions import RestrictedProtocol
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.observe.status.page import Page, make_page

__all__ = ["OpenApiPages"]

#: Groups whose endpoints tell the names of all models and their tensors. Both are needed to see them in the document.
MODELS_GROUPS: Final = ("model-repository", "metadata")

#: Its files are read; it is not imported, because it would import Flask.
PACKAGE: Final = "flask_swagger_ui"
FILES: Final = {
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
}
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
    """

    def __init__(
        self,
        get_table: Callable[[], ModelTable],
        secrets: Mapping[str, RestrictedProtocol],
        max_input_bytes: int,
        queue: ControlQueue,
    ) -> None:
        self._queue = queue
        self._guards = [secrets[group] for group in MODELS_GROUPS if group in secrets]
        headers = sorted({one.header for one in self._guards})
        vary = {"vary": ", ".join(headers)} if headers else {}
        writer = DocumentWriter(secrets, max_input_bytes)
        self._whole = _OpenApi(writer, get_table, vary)
        self._without_models = _OpenApi(writer, lambda: None, vary)
        folder = _folder()
        self._files: dict[str, DocumentSource] = {}
        if folder is not None:
            page = make_page(files(__package__).joinpath("docs.html").read_text(encoding="utf-8"), own_files=True)
            self._files["/docs"] = _HtmlPage(page)
            for name, media_type in FILES.items():
                self._files[f"/docs/{name}"] = _File(folder / name, media_type)

    def of(self, worker: Worker) -> Mapping[str, Handle]:
        """What answers GET and HEAD, by path."""
        page = partial(DocumentPage, worker, self._queue)
        pages: dict[str, Handle] = {path: page(source) for path, source in self._files.items()}
        if not pages:
            pages["/docs"] = lambda call: call.reply(*_NO_FILES)
        whole, without_models = page(self._whole), page(self._without_models)

        def document(call: RestHttpCall) -> None:
            (whole if self._may_see_models(call.head.fields) else without_models)(call)

        return {"/openapi.json": document, **pages}

    def _may_see_models(self, fields: Mapping[str, str]) -> bool:
        return all(restriction_answer(fields, one.header, one.value) is None for one in self._guards)


class _OpenApi:
    """A ``DocumentSource``: made again when the table of models is another.

    Args:
        writer: writes it.
        get_table: returns the table of models to describe; None for a document without models.
        fields: header fields.
    """

    def __init__(
        self, writer: DocumentWriter, get_table: Callable[[], ModelTable | None], fields: Mapping[str, str]
    ) -> None:
        self._writer = writer
        self._get_table = get_table
        self._fields = fields
        #: the last one made and its table. Replaced by the main thread as a whole, read by all.
        self._made: tuple[ModelTable | None, Document] | None = None
        self._turn = trio.Lock()

    def current(self) -> Document | None:
        made = self._made
        return made[1] if made is not None and made[0] is self._get_table() else None

    async def make(self) -> Document:
        async with self._turn:
            document = self.current()
            if document is None:
                table = self._get_table()
                document = await make_document(self._writer.write(table), "application/json", self._fields)
                self._made = table, document
            return document


class _Fixed:
    """A ``DocumentSource`` whose document stays as it is."""

    def __init__(self) -> None:
        self._made: Document | None = None

    def current(self) -> Document | None:
        return self._made


class _File(_Fixed):
    """A file of Swagger UI."""

    def __init__(self, path: Path, media_type: str) -> None:
        super().__init__()
        self._path = path
        self._media_type = media_type

    async def make(self) -> Document:
        content = await trio.Path(self._path).read_bytes()
        self._made = await make_document([content], self._media_type)
        return self._made


class _HtmlPage(_Fixed):
    """The page that shows the document."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self._page = page

    async def make(self) -> Document:
        fields = {"content-security-policy": self._page.policy, "referrer-policy": "no-referrer"}
        self._made = await make_document([self._page.html], "text/html; charset=utf-8", fields)
        return self._made


def _folder() -> Path | None:
    """Where Swagger UI's files are; None where the package is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "dist"
    return folder if all((folder / name).is_file() for name in FILES) else None
