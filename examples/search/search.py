"""Search the project's documentation by meaning, with OpenAI's client.

    python examples/search/search.py "how do I stop it without losing requests?"

Every section of a page is a passage. Their vectors come from the server, 64 passages in a request, and are kept until
a page changes; a question costs one request more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import openai

ROOT = Path(__file__).parents[2]
PASSAGES_PER_REQUEST = 64
#: Of a passage; the model reads 256 tokens.
MOST_CHARACTERS = 1_000

Vectors = npt.NDArray[np.float32]


def passages_of(page: Path) -> list[tuple[str, str]]:
    """The sections of a page of Markdown: each one's heading, and what is embedded."""
    text = page.read_text(encoding="utf-8")
    found = []
    for section in re.split(r"^(?=#{1,3} )", text, flags=re.MULTILINE):
        heading, _, body = section.partition("\n")
        body = " ".join(body.split())
        if heading.startswith("#") and body:
            title = heading.lstrip("# ")
            found.append((f"{page.name}: {title}", f"{title}. {body}"[:MOST_CHARACTERS]))
    return found


def embed(client: openai.OpenAI, model: str, texts: Sequence[str]) -> Vectors:
    """Vectors of length 1, float32 [texts, dimensions]."""
    parts = []
    for first in range(0, len(texts), PASSAGES_PER_REQUEST):
        answer = client.embeddings.create(model=model, input=list(texts[first : first + PASSAGES_PER_REQUEST]))
        parts += [item.embedding for item in answer.data]
    vectors = np.array(parts, np.float32)
    length: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return length


def vectors_of(client: openai.OpenAI, model: str, texts: Sequence[str], cache: Path) -> Vectors:
    """The vectors of the passages: those in the cache where it is of these passages and this model."""
    key = hashlib.sha256(json.dumps([model, texts]).encode()).hexdigest()
    file = cache / f"toutates-search-{key[:16]}.npy"
    if file.exists():
        kept: Vectors = np.load(file)
        return kept
    vectors = embed(client, model, texts)
    np.save(file, vectors)
    return vectors


def main() -> int:
    parser = argparse.ArgumentParser(description="Search the project's documentation by meaning.")
    parser.add_argument("question", nargs="+")
    parser.add_argument("--url", default="http://localhost:8000/v1", help="of the server's OpenAI API")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many sections are shown")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()), help="folder of kept vectors")
    parser.add_argument("--pages", type=Path, nargs="+", metavar="FILE", help="pages of Markdown (default: docs)")
    given = parser.parse_args()
    client = openai.OpenAI(base_url=given.url, api_key="none")
    pages = given.pages or sorted((ROOT / "docs").glob("*.md"))
    passages = [passage for page in pages for passage in passages_of(page)]
    try:
        vectors = vectors_of(client, given.model, [text for _, text in passages], given.cache)
        question = embed(client, given.model, [" ".join(given.question)])[0]
    except openai.OpenAIError as error:
        print(f"the server at {given.url}: {error}", file=sys.stderr)
        return 1
    scores = vectors @ question
    for at in np.argsort(-scores)[: given.top]:
        print(f"{scores[at]:.3f}  {passages[at][0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
