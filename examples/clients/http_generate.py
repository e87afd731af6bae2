"""The generate extension: one flat JSON object in and out, or answers as server-sent events as they are made.

python examples/clients/http_generate.py [--url localhost:8000]
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from collections.abc import Iterator
from typing import Any

REQUEST = {"INPUT0": list(range(16)), "INPUT1": [1] * 16, "id": "example"}


def ask(connection: http.client.HTTPConnection, endpoint: str) -> http.client.HTTPResponse:
    """An answer whose body is still to be read."""
    connection.request("POST", f"/v2/models/simple/{endpoint}", json.dumps(REQUEST))
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(json.load(response)["error"])
    return response


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Each event as it comes. A failure behind the first one is an event with the member ``error``."""
    for line in response:
        if line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise RuntimeError(event["error"])
            yield event


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8000")
    connection = http.client.HTTPConnection(parser.parse_args().url, timeout=30)
    try:
        answers = [json.load(ask(connection, "generate")), *events(ask(connection, "generate_stream"))]
    finally:
        connection.close()
    for answer in answers:
        print(answer["id"], answer["OUTPUT0"])
    return 0 if [answer["OUTPUT0"] for answer in answers] == [list(range(1, 17))] * 2 else 1


if __name__ == "__main__":
    sys.exit(main())
