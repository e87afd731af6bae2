"""A Hub on this machine: the listing and the files of models over HTTP, as huggingface.co answers, and its faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Hub", "hub"]

_LARGE = 1_000  # bytes; what is larger is named by its SHA-256, and comes from another host


class Hub:
    """What the Hub has, and what it was asked.

    Attributes:
        models: files by path, by ORG/MODEL.
        token: that every request to the Hub itself needs; "" for none.
        cuts: numbers of bytes after which contents of large files are cut off, one for each request to come.
        stalls: whether contents of large files stop halfway until ``goes_on`` is set; ``stalled`` is set when one does.
        status: of every answer; 0 for what is right.
        requests: paths, with the Authorization and Range that came.
        changed: instead of what a listing says, contents by path.
        page: files on a page of a listing.
    """

    def __init__(self) -> None:
        self.models: dict[str, dict[str, bytes]] = {}
        self.changed: dict[str, bytes] = {}
        self.token = ""
        self.cuts: list[int] = []
        self.stalls = False
        self.stalled, self.goes_on = threading.Event(), threading.Event()
        self.status = 0
        self.requests: list[tuple[str, str, str]] = []
        self.page = 1_000
        self.endpoint = ""
        self.storage = ""  # URL of the other host

    def asked(self, part: str) -> list[tuple[str, str, str]]:
        """Requests whose path has this in it."""
        return [one for one in self.requests if part in one[0]]


@contextmanager
def hub() -> Iterator[Hub]:
    """Such a Hub, until the block ends."""
    here = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            path = unquote(url.path)
            sent = self.headers.get("Authorization", "")
            here.requests.append((path, sent, self.headers.get("Range", "")))
            if here.status:
                return self.answer(here.status, b"no")
            if self.server is storage:
                return self.content(path)
            if here.token and sent != f"Bearer {here.token}":
                return self.answer(401, b"no")
            words = path.removeprefix("/api/models").split("/")
            model, verb, revision, file = f"{words[1]}/{words[2]}", words[3], words[4], "/".join(words[5:])
            if model not in here.models or revision != "main":
                return self.answer(404, b"no")
            if verb == "tree":
                return self.tree(model, int(parse_qs(url.query).get("cursor", ["0"])[0]))
            content = here.changed.get(file, here.models[model].get(file))
            if content is None:
                return self.answer(404, b"no")
            if len(content) > _LARGE:
                return self.answer(302, b"", {"Location": f"{here.storage}/{model}/{file}?Signature=secret"})
            return self.answer(200, content)

        def tree(self, model: str, first: int) -> None:
            files = sorted(here.models[model].items())
            entries: list[dict[str, object]] = [{"type": "directory", "path": "onnx", "oid": "0" * 40, "size": 0}]
            for path, content in files[first : first + here.page]:
                git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
                entry: dict[str, object] = {"type": "file", "path": path, "oid": git, "size": len(content)}
                if len(content) > _LARGE:
                    entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
                entries.append(entry)
            following = first + here.page
            link = f'<{here.endpoint}/api/models/{model}/tree/main?recursive=true&cursor={following}>; rel="next"'
            self.answer(200, json.dumps(entries).encode(), {"Link": link} if following < len(files) else {})

        def content(self, path: str) -> None:
            _, org, name, file = path.split("/", 3)
            content = here.changed.get(file, here.models[f"{org}/{name}"][file])
            asked = self.headers.get("Range")
            at = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            self.answer(206 if at else 200, content[at:], cut=here.cuts.pop(0) if here.cuts else None)

        def answer(
            self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({}), cut: int | None = None
        ) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            half = len(body) // 2 if here.stalls and self.server is storage else 0
            self.wfile.write(body[:half])
            if half:
                here.stalled.set()
                here.goes_on.wait()
                return
            self.wfile.write(body[:cut])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Handler) as front,
        ThreadingHTTPServer(("127.0.0.1", 0), Handler) as storage,
    ):
        here.endpoint, here.storage = (f"http://127.0.0.1:{one.server_address[1]}" for one in (front, storage))
        threads = [threading.Thread(target=one.serve_forever, args=(0.01,)) for one in (front, storage)]
        for thread in threads:
            thread.start()
        try:
            yield here
        finally:
            here.goes_on.set()
            for one in (front, storage):
                one.shutdown()
            for thread in threads:
                thread.join()
