"""The picture of an ensemble's graph."""

from __future__ import annotations

from xml.etree import ElementTree

from google.protobuf import text_format

from tests.ensembles import pbtxt, step
from toutates.models.graph_picture import graph_svg
from toutates.protocol.model_config_pb2 import ModelConfig

NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(config: str) -> tuple[ElementTree.Element, list[str]]:
    root = ElementTree.fromstring(graph_svg(text_format.Parse(config, ModelConfig())))
    return root, [one.text or "" for one in root.iter(f"{NAMESPACE}text")]


def test_every_step_and_tensor_is_drawn_from_left_to_right() -> None:
    steps = [step("join", "a=t0", "b=t1", "y=OUT"), step("first/2", "x=IN", "y=t0"), step("second", "x=IN", "y=t1")]
    root, texts = drawn(pbtxt(["IN FP32 [-1, 4]"], ["OUT FP32 [4]"], steps))
    assert {"IN", "FP32 [-1, 4]", "join", "first", "step 1, version 2", "second", "OUT", "t0", "t1"} <= set(texts)
    at = {one.text: float(one.get("x", "0")) for one in root.iter(f"{NAMESPACE}text")}
    assert at["IN"] < min(at["first"], at["second"]) <= max(at["first"], at["second"]) < at["join"] < at["OUT"]
    assert len(list(root.iter(f"{NAMESPACE}path"))) == 5


def test_names_cannot_leave_their_text_and_a_circle_ends() -> None:
    bad = "<script>&\\n"
    _, texts = drawn(pbtxt(["IN FP32 [4]"], ["OUT FP32 [4]"], [step(bad, "x=a", "y=b"), step("m", "x=b", "y=a")]))
    assert "<script>&" in texts
