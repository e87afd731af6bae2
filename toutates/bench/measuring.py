"""Measures a server: asks it for its models' inputs, makes a load several times over, and compares answers.

``prepare`` makes the requests, ``measure`` sends them and returns what came of it. Both know nothing of a command line:
``prepare(endpoint, Questions((Target("mlp"),)))`` and ``measure(prepared, load, 3)`` are all that is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from toutates.bench.bodies import BINARY, JSON, BodySettings, Region, embeddings_body, infer_body
from toutates.bench.calls import Refused
from toutates.bench.data import Contents, DataSettings, make_contents
from toutates.bench.endpoint import HTTP, Endpoint, parse_endpoint
from toutates.bench.load import Asked, Load, LoadFailed, LoadResult, Watcher, run_load
from toutates.bench.measured import Measured
from toutates.bench.metadata import ModelFacts, ask_model
from toutates.bench.references import Reference, ask_for_reference, of_contents, of_onnx, reader
from toutates.bench.sequences import Sequences
from toutates.bench.server_figures import Meter
from toutates.bench.shared_regions import SharedRegions
from toutates.bench.texts import make_texts
from toutates.system.text import one_line

__all__ = ["FIRST_ANSWER", "NO_CHECK", "Prepared", "Questions", "Target", "load_of", "measure", "prepare"]

FIRST_ANSWER = "first"
NO_CHECK = "none"
#: A client that needs more of its core is nearly what the figures are about.
_BUSY = 0.85
_MOST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Target:
    """A model that is asked.

    Attributes:
        model: its name.
        version: of it; "" for the newest.
        weight: how often it is asked, as a share of the sum of all.
        shapes: of its inputs, where they are not to be as the model has them with open axes of 1.
    """

    model: str
    version: str = ""
    weight: float = 1.0
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked, and how.

    Attributes:
        targets: the models.
        api: "v2" for inferences; "openai" or "tei" for embeddings.
        data: what requests hold; its shapes are those of all targets.
        inputs, outputs: JSON or BINARY, how REST has tensors.
        fields: further metadata or header fields.
        parameters: of each inference.
        streams: whether requests are messages of streams (ModelStreamInfer).
        sequences: of requests that belong together; None for single ones.
        shared_memory: whether inputs are in shared memory.
        output_bytes: of shared memory for each output; 0 for outputs in answers.
        reference: FIRST_ANSWER, NO_CHECK, an ONNX file, or a server's URL.
    """

    targets: Sequence[Target]
    api: str = "v2"
    data: DataSettings = field(default_factory=DataSettings)
    inputs: str = BINARY
    outputs: str = BINARY
    fields: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str | int | bool | float] = field(default_factory=dict)
    streams: bool = False
    sequences: Sequences | None = None
    shared_memory: bool = False
    output_bytes: int = 0
    reference: str = FIRST_ANSWER


@dataclass(slots=True)
class Prepared:
    """Requests to a server, which ``close`` frees of what they need there.

    Attributes:
        endpoint: the server.
        questions: what they ask.
        asked: the requests.
        references: what answers to each are compared with; None for nothing.
        models: the model that each is to.
        regions: shared memory of theirs.
    """

    endpoint: Endpoint
    questions: Questions
    asked: list[Asked]
    references: list[Reference | None]
    models: list[str]
    regions: SharedRegions | None = None

    def close(self) -> None:
        """Remove the shared memory."""
        if self.regions is not None:
            self.regions.close()

    def meter(self, metrics: tuple[Endpoint, str] | None = None, watcher: Watcher | None = None) -> Meter:
        """What reads the server's counters before and after each load."""
        models = [(one.model, one.version) for one in self.questions.targets] if self.questions.api == "v2" else []
        return Meter(self.endpoint, models, metrics, self.questions.fields, watcher)


def prepare(endpoint: Endpoint, questions: Questions, seed: int = 1) -> Prepared:
    """Make the requests of a load.

    Args:
        endpoint: the server.
        questions: what is asked.
        seed: of random values.

    Raises:
        Unreachable: the server, or that of the reference, cannot be reached.
        Refused: a request cannot be made, or is answered with an error.
        ConfigurationError: the reference is neither a file nor a URL.
    """
    rng = np.random.default_rng(seed)
    settings = BodySettings(
        endpoint.protocol,
        questions.inputs,
        questions.outputs,
        questions.streams,
        questions.fields,
        questions.parameters,
    )
    prepared = Prepared(endpoint, questions, [], [], [])
    if questions.shared_memory or questions.output_bytes:
        prepared.regions = SharedRegions(endpoint, questions.fields)
    try:
        for target in questions.targets:
            if questions.api == "v2":
                _add_inferences(prepared, target, settings, rng)
            else:
                _add_texts(prepared, target, settings, rng)
    except BaseException:
        prepared.close()
        raise
    return prepared


def _add_texts(prepared: Prepared, target: Target, settings: BodySettings, rng: np.random.Generator) -> None:
    questions = prepared.questions
    if prepared.endpoint.protocol != HTTP:
        raise Refused("embeddings are asked for over HTTP; write http:// before the address")
    requests = make_texts(questions.data, rng)
    for texts in requests:
        asked = embeddings_body(questions.api, target.model, texts, questions.fields, target.weight / len(requests))
        prepared.asked.append(asked)
        prepared.models.append(target.model)
        given = ask_for_reference(_reference_server(prepared), asked, settings, questions.api)
        prepared.references.append(_reference(questions, given, settings))


def _add_inferences(prepared: Prepared, target: Target, settings: BodySettings, rng: np.random.Generator) -> None:
    questions = prepared.questions
    facts = ask_model(prepared.endpoint, target.model, target.version, questions.fields)
    data = replace(questions.data, shapes={**questions.data.shapes, **target.shapes})
    is_json = questions.inputs == JSON and prepared.endpoint.protocol == HTTP
    if is_json and (bad := [one.name for one in facts.inputs if one.datatype == "FP16"]):
        raise Refused(f"input '{bad[0]}' is FP16, which JSON cannot hold; send binary tensors")
    if facts.decoupled and not questions.streams:
        raise Refused(f"model '{facts.name}' is decoupled; it answers over streams alone: add --streaming")
    contents = make_contents(facts, data, rng)
    inputs, outputs = _regions(prepared, facts, contents)
    weight = target.weight / len(contents)
    asked = [
        infer_body(facts, one, settings, weight, regions, outputs)
        for one, regions in zip(contents, inputs, strict=True)
    ]
    prepared.asked += asked
    prepared.models += [target.model] * len(asked)
    prepared.references += _references(prepared, facts, contents, asked, settings)


def _regions(
    prepared: Prepared, facts: ModelFacts, contents: Sequence[Contents]
) -> tuple[list[dict[str, Region]], dict[str, Region]]:
    inputs: list[dict[str, Region]] = [{} for _ in contents]
    outputs: dict[str, Region] = {}
    if prepared.regions is not None:
        if prepared.questions.shared_memory:
            inputs = prepared.regions.inputs(facts, contents)
        if prepared.questions.output_bytes:
            outputs = prepared.regions.outputs(facts, prepared.questions.output_bytes)
    return inputs, outputs


def _references(
    prepared: Prepared,
    facts: ModelFacts,
    contents: Sequence[Contents],
    asked: Sequence[Asked],
    settings: BodySettings,
) -> list[Reference | None]:
    questions = prepared.questions
    if questions.sequences:  # what a stateful model answers depends on what came before
        return [None] * len(asked)
    if questions.reference.endswith(".onnx"):
        for one in asked[:1]:  # says at once what is wrong with the requests
            ask_for_reference(prepared.endpoint, one, settings, questions.api)
        given = of_onnx(questions.reference, facts, contents)
    else:
        server = _reference_server(prepared)
        given = [ask_for_reference(server, one, settings, questions.api) for one in asked]
    return [
        _reference(questions, of_contents(one) if one.expected else outputs, settings)
        for one, outputs in zip(contents, given, strict=True)
    ]


def _reference_server(prepared: Prepared) -> Endpoint:
    reference = prepared.questions.reference
    if reference in (FIRST_ANSWER, NO_CHECK) or reference.endswith(".onnx"):
        return prepared.endpoint
    return parse_endpoint(reference, prepared.endpoint.protocol, None, "--reference")


def _reference(questions: Questions, outputs: Mapping[str, object], settings: BodySettings) -> Reference | None:
    if questions.reference == NO_CHECK or questions.output_bytes:
        return None
    return Reference(outputs, reader(settings, questions.api))  # type: ignore[arg-type]


def load_of(prepared: Prepared, load: Load) -> Load:
    """The load with the requests, to their server."""
    endpoint, questions = prepared.endpoint, prepared.questions
    return replace(
        load,
        host=endpoint.host,
        port=endpoint.port,
        protocol=endpoint.protocol,
        tls=endpoint.tls,
        requests=prepared.asked,
        streams=questions.streams,
        sequences=questions.sequences,
    )


def measure(
    prepared: Prepared,
    load: Load,
    repeats: int = 1,
    meter: Meter | None = None,
    tell: Callable[[Measured], None] | None = None,
    most_processes: int = 1,
) -> Measured:
    """Make a load several times over.

    Args:
        prepared: the requests.
        load: how they are sent; what it says of the server and of requests is replaced.
        repeats: how often.
        meter: reads the server's counters; None for one without metrics.
        tell: is called after each repeat.
        most_processes: that may make the load together. While they are too busy, and there may be more, the first
            load is thrown away, and made again by twice as many.

    Raises:
        LoadFailed: the first one cannot be made. If a later one cannot be, what there is says so.
    """
    meter = meter or prepared.meter()
    whole = load_of(prepared, load)
    measured = Measured([], load.rate is not None, processes=load.processes)
    for number in range(repeats):
        try:
            result = run_load(replace(whole, seed=load.seed + number), meter)
            while not number and (more := _more_processes(whole, result, most_processes)):
                measured.processes = more
                whole = replace(whole, processes=more)
                result = run_load(replace(whole, seed=load.seed), meter)
        except (LoadFailed, KeyboardInterrupt) as error:
            if not measured.outcomes:
                raise
            measured.stopped = True
            measured.broken = str(error)
            break
        measured.outcomes.append(result.outcome)
        measured.server.append(meter.figures(result.outcome.total.answered))
        measured.texts = {**result.texts, **measured.texts}
        for choice, message in result.samples:
            if (reference := prepared.references[choice]) is not None:
                measured.checked += 1
                if difference := reference.difference(message):
                    measured.wrong.append(one_line(f"model '{prepared.models[choice]}': {difference}", _MOST_TEXT))
        if tell is not None:
            tell(measured)
        if result.stopped:
            measured.stopped = True
            break
    return measured


def _more_processes(load: Load, result: LoadResult, most: int) -> int:
    """How many processes are to make a load instead; 0 if those that made it are enough, or are all that may."""
    most = min(most, load.connections, load.connections if load.rate is not None else load.under_way)
    if result.stopped or result.outcome.client_cpu < _BUSY or load.processes >= most:
        return 0
    return min(2 * load.processes, most)
