"""The context that a handler gets with each batch."""

from __future__ import annotations

from typing import Any

from ts.metrics.metrics_store import MetricsStore

__all__ = ["Context", "RequestProcessor"]


class RequestProcessor:
    """The header fields of one request, and the status and the fields of its answer."""

    def __init__(self, request_header: dict[str, str]) -> None:
        self._request_header = request_header
        self._status = 200
        self._phrase = ""
        self._response_header: dict[str, str] = {}

    def get_request_property(self, key: str) -> str | None:
        return self._request_header.get(key.lower())

    def get_request_properties(self) -> dict[str, str]:
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        self._status, self._phrase = code, reason_phrase or ""

    def get_response_status_code(self) -> int:
        return self._status

    def get_response_status_phrase(self) -> str:
        return self._phrase

    def add_response_property(self, key: str, value: str) -> None:
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        return self._response_header.get(key)


class Context:
    """What a handler may know of its model and of the requests of a batch."""

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any],
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: MetricsStore | None = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.explain = False
        self.request_ids: dict[int, str] = {}
        self.request_processor: list[RequestProcessor] = []
        self.metrics = metrics or MetricsStore()
        self.model_yaml_config = model_yaml_config or {}
        self.stopping_criteria: Any = None
        self.system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }

    def begin(self, ids: list[str], heads: list[dict[str, str]]) -> None:
        """Begin a batch of requests with these ids and header fields."""
        self.request_ids = dict(enumerate(ids))
        self.request_processor = [RequestProcessor(head) for head in heads]
        self.explain = bool(heads) and heads[0].get("explain") == "True"
        self.metrics.reset()

    # --- the request -------------------------------------------------------------------------------------------------

    def get_request_id(self, idx: int = 0) -> str | None:
        """The id of a request of the batch."""
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> str | None:
        """One header field of a request."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """All header fields of a request, by lower-case name."""
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> str:
        """The id of the sequence that a request belongs to; "" for none."""
        return self.get_request_header(idx, "ts_request_sequence_id") or ""

    # --- the answer --------------------------------------------------------------------------------------------------

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of an answer."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """The content type that was set for an answer."""
        return self.request_processor[idx].get_response_header("content-type")

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of an answer."""
        self.request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of all answers of the batch."""
        for processor in self.request_processor:
            processor.report_status(code, phrase)

    def get_response_status(self, idx: int) -> tuple[int, str]:
        """The status of an answer, and its phrase."""
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header field of an answer."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """The header fields that were set for an answer."""
        return self.request_processor[idx].get_response_headers()
