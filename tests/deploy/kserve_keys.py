"""Holds objects of KServe against the models of KServe's own client: a script, since that client's protobuf messages
have the names of Triton's, and both cannot be in one process.

Reads a JSON list of objects and prints what is wrong with each, a line for each key.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

import kserve.models
import kubernetes.client.models

#: Types of the clients that are no classes of theirs.
PLAIN: Final = {"float", "object", "datetime", "ResourceQuantity", "IntOrString"}
EXACT: Final = {"str": str, "int": int, "bool": bool}
COLLECTION: Final = re.compile(r"(list|dict)\[(?:str, )?(.+)\]")
VERSIONS: Final = {"serving.kserve.io/v1alpha1": "V1alpha1", "serving.kserve.io/v1beta1": "V1beta1"}


def problems(value: Any, type_name: str, where: str) -> Iterator[str]:
    """What of a value does not fit the model of its type."""
    type_name = re.sub(r"^[Dd]ict[(\[](.*)[)\]]$", r"dict[\1]", re.sub("^List", "list", type_name))
    if collection := COLLECTION.fullmatch(type_name):
        if type(value).__name__ != collection[1]:
            yield f"{where}: a {collection[1]} is wanted"
            return
        entries = enumerate(value) if isinstance(value, list) else value.items()
        for key, entry in entries:
            yield from problems(entry, collection[2], f"{where}.{key}")
    elif type_name in EXACT:
        if type(value) is not EXACT[type_name]:
            yield f"{where}: {type_name} is wanted"
    elif type_name not in PLAIN:
        model = getattr(kserve.models, type_name, None) or getattr(kubernetes.client.models, type_name)
        keys = {key: model.openapi_types[name] for name, key in model.attribute_map.items()}
        for key, entry in value.items():
            if key in keys:
                yield from problems(entry, keys[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}: there is no such key in {type_name}"


for item in json.load(sys.stdin):
    for problem in problems(item, VERSIONS[item["apiVersion"]] + item["kind"], item["metadata"]["name"]):
        print(problem)
