"""Members of bodies that clients of other servers send: carried out, refused, or ignored by name, never passed over.

Each API has a closed list of them (``Members``). What changes an answer is said by a member of ours that does the same,
or refused; what does not is ignored, and the answer names it in a header field. The lists are those of vLLM, Infinity,
Jina, Voyage, NVIDIA's NIM, Cohere, Ollama and the Hugging Face Hub's client, as their documentation had them in 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from toutates.api.text.problems import Kind, Problem

__all__ = [
    "CLASSES",
    "EMBEDDINGS",
    "RANKS",
    "TEI_EMBEDDINGS",
    "TEI_OTHERS",
    "TEI_SIMILARITY",
    "TEI_TOKENS",
    "Members",
    "Sorted",
    "ignored_field",
]

#: Makes of a member and its value the members that say the same here. May raise Problem.
Meaning = Callable[[str, Any], Mapping[str, Any]]

#: Names of ignored members in an answer; others, and those that no header field may hold, are "...".
_MOST_NAMED: Final = 20
_NAME: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Sorted(NamedTuple):
    """The members of a body in terms of ours.

    Attributes:
        said: what is to be read as the request.
        ignored: names of the members that were ignored.
        names: by which name the body has a member of ``said``.
    """

    said: dict[str, Any]
    ignored: tuple[str, ...]
    names: dict[str, str]


@dataclass(frozen=True, slots=True)
class Members:
    """What an API makes of members that its request does not have.

    Attributes:
        meanings: by name.
        ignored: names of those that change no answer.
        others: whether any other one is ignored too, as the API's own servers do; else it is refused.
        parameters: whether members may stand in an object ``parameters`` as well.
    """

    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    others: bool = False
    parameters: bool = False

    def sort(self, document: Mapping[str, Any], own: Iterable[str]) -> Sorted:
        """Put members into terms of ours.

        Args:
            document: the body. What is null in it is as if left out.
            own: the members of the request.

        Raises:
            Problem: a member has a value that is not offered.
        """
        inner = document.get("parameters")
        if self.parameters and isinstance(inner, dict):
            document = {name: value for name, value in document.items() if name != "parameters"} | inner
        known = frozenset(own)
        said: dict[str, Any] = {}
        names: dict[str, str] = {}
        ignored: list[str] = []
        for name, value in document.items():
            if value is None:
                continue
            meaning = self.meanings.get(name)
            if meaning is None and name not in known and (self.others or name in self.ignored):
                ignored.append(name)
                continue
            # A member that nobody knows is refused as what no request has.
            for target, own_value in ({name: value} if meaning is None else meaning(name, value)).items():
                if said.get(target, own_value) != own_value:
                    text = f"`{name}` says something else than `{names[target]}` does: send one of them"
                    raise Problem(Kind.VALUE, text, name)
                said[target], names[target] = own_value, name
        return Sorted(said, tuple(ignored), names)


def ignored_field(names: Iterable[str]) -> bytes:
    """The header field that names ignored members, ``x-ignored-members``; b"" for none."""
    names = list(names)
    if not names:
        return b""
    shown = [name for name in names if _NAME.fullmatch(name)][:_MOST_NAMED]
    if len(shown) < len(names):
        shown.append("...")
    return b"x-ignored-members: %b\r\n" % ", ".join(shown).encode()


# --- meanings --------------------------------------------------------------------------------------------------------


def _as(target: str) -> Meaning:
    return lambda name, value: {target: value}


def _not(target: str) -> Meaning:
    """A flag that is the opposite of another."""

    def meaning(name: str, value: Any) -> Mapping[str, Any]:
        _check(name, value, (True, False))
        return {target: not value}

    return meaning


def _only(*values: Any) -> Meaning:
    """A member that may have only these values, which ask for nothing that is not done anyway."""

    def meaning(name: str, value: Any) -> Mapping[str, Any]:
        _check(name, value, values)
        return {}

    return meaning


def _words(meanings: Mapping[str, Mapping[str, Any]]) -> Meaning:
    """A member whose value is one of some words, in any case."""

    def meaning(name: str, value: Any) -> Mapping[str, Any]:
        word = value.lower() if isinstance(value, str) else value
        _check(name, word, tuple(meanings), value)
        return meanings[word]

    return meaning


def _check(name: str, value: Any, values: tuple[Any, ...], shown: Any = None) -> None:
    """Refuse a value that is not one of some; bools are no numbers."""
    if any(type(value) is type(one) and value == one for one in values):
        return
    given = str(value if shown is None else shown)[:50]
    if not values:
        raise Problem(Kind.VALUE, f"`{name}` is not offered here: leave it out", name)
    wanted = ", ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in values)
    raise Problem(Kind.VALUE, f"`{name}` is offered here with {wanted} only, and not with {given}", name)


def _truncate(name: str, value: Any) -> Mapping[str, Any]:
    """A flag, or NVIDIA's and Cohere's words for it."""
    if not isinstance(value, str):
        return {"truncate": value}
    return _truncate_words(name, value)


_truncate_words: Final = _words(
    {
        "none": {"truncate": False},
        "start": {"truncate": True, "truncation_direction": "left"},
        "end": {"truncate": True, "truncation_direction": "right"},
    }
)


def _input_type(name: str, value: Any) -> Mapping[str, Any]:
    """What a text is for, which is the name of the model's prompt for it; Cohere puts ``search_`` before it."""
    return {"prompt_name": value.removeprefix("search_") if isinstance(value, str) else value}


#: How texts are read and cut.
_TEXTS: Final[Mapping[str, Meaning]] = {
    "truncate": _truncate,
    "truncation": _truncate,
    "truncation_side": _as("truncation_direction"),
    "padding": _only("do_not_pad"),
    "modality": _only("text"),
    "chat_template": _only(),
    "chat_template_kwargs": _only(),
    "instruction": _only(),
    "instruct": _only(),
}
_SCORES: Final[Mapping[str, Meaning]] = {
    **_TEXTS,
    "use_activation": _not("raw_scores"),
    "activation": _not("raw_scores"),
    "softmax": _not("raw_scores"),
}
#: What schedules, counts or names a request.
_IGNORED: Final = frozenset(
    {
        "cache_salt",
        "keep_alive",
        "metadata",
        "priority",
        "prompt_cache_key",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

#: Of requests for vectors.
EMBEDDINGS: Final = Members(
    {
        **_TEXTS,
        "normalized": _as("normalize"),
        "use_activation": _as("normalize"),
        "input_type": _input_type,
        "task": _as("prompt_name"),
        "output_dimension": _as("dimensions"),
        "truncate_dim": _as("dimensions"),
        "embedding_type": _words({"float": {}, "base64": {"encoding_format": "base64"}}),
        "output_dtype": _only("float", "float32"),
        "embed_dtype": _only("float", "float32"),
        "endianness": _only("little", "native"),
        "late_chunking": _only(False),
        "return_multivector": _only(False),
    },
    _IGNORED,
)
#: Of requests for the scores of classes.
CLASSES: Final = Members(
    {
        **_SCORES,
        "function_to_apply": _words(
            {"none": {"raw_scores": True}, "sigmoid": {"activation": "sigmoid"}, "softmax": {"activation": "softmax"}}
        ),
    },
    others=True,
    parameters=True,
)
#: Of requests for the relevance of documents.
RANKS: Final = Members(
    {
        **_SCORES,
        "top_k": _as("top_n"),
        "return_text": _as("return_documents"),
        "rank_fields": lambda name, value: _only("text")(name, value[0] if _is_one(value) else value),
        "max_chunks_per_doc": _only(1),
        "max_query_length": _only(),
        "max_doc_length": _only(),
        "overlap_tokens": _only(),
        "return_embeddings": _only(False),
    },
    others=True,
    parameters=True,
)
#: Of requests to TEI's routes, whose own server passes over what it does not know; the Hugging Face Hub's client puts
#: members into ``parameters``.
TEI_OTHERS: Final = Members(others=True, parameters=True)
TEI_EMBEDDINGS: Final = replace(
    TEI_OTHERS, meanings={**EMBEDDINGS.meanings, "encoding_format": _only("float"), "embedding_type": _only("float")}
)
_FULL_SIZE: Final = dict.fromkeys(("dimensions", "output_dimension", "truncate_dim"), _only())
_LENGTHS: Final = ("normalize", "normalized", "use_activation")
TEI_TOKENS: Final = replace(
    TEI_EMBEDDINGS, meanings={**TEI_EMBEDDINGS.meanings, **_FULL_SIZE, **dict.fromkeys(_LENGTHS, _only(False))}
)
TEI_SIMILARITY: Final = replace(
    TEI_EMBEDDINGS, meanings={**TEI_EMBEDDINGS.meanings, **_FULL_SIZE, **dict.fromkeys(_LENGTHS, _only(True))}
)


def _is_one(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1
