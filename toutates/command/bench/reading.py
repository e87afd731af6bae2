"""What the flags of ``toutates bench`` say, as the settings of a measurement."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toutates.bench.arrivals import Arrivals
from toutates.bench.data import DataSettings, check_source
from toutates.bench.endpoint import GRPC, HTTP, Endpoint, Tls, parse_endpoint
from toutates.bench.load import Load
from toutates.bench.measured import Condition, read_condition, read_target
from toutates.bench.measuring import FIRST_ANSWER, NO_CHECK, Questions, Target
from toutates.bench.sequences import Sequences
from toutates.command.bench.perf_analyzer import as_written, translate
from toutates.system.cpu_quota import usable_cpus
from toutates.system.errors import ConfigurationError

__all__ = ["Wanted", "read_flags"]

_MOST_POINTS = 200
_MOST_RATE = 10_000_000
#: Over gRPC, and over HTTP/1.1 in an open loop, where a connection has one request under way.
_CONNECTIONS = 4
_HTTP_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is measured.

    Attributes:
        endpoint: the server.
        other: a server to compare it with; None for none.
        metrics: where the server's metrics are.
        questions: what is asked.
        loads: one, or those of a range.
        repeats: of each.
        conditions: under which the command fails.
        targets: that a knee is searched for; empty for none.
        threshold: that ends a range; None for none.
        within: the rates between which a knee is searched for; None for any.
        most_processes: that may make a load together.
    """

    endpoint: Endpoint
    other: Endpoint | None
    metrics: tuple[Endpoint, str] | None
    questions: Questions
    loads: Sequence[Load]
    repeats: int
    conditions: Sequence[Condition]
    targets: Sequence[Condition]
    threshold: Condition | None
    within: tuple[float, float] | None
    most_processes: int


def read_flags(parsed: argparse.Namespace) -> Wanted:
    """Read the flags.

    Raises:
        ConfigurationError: one cannot be used; it is named as it was written.
    """
    translate(parsed)
    try:
        return _wanted(parsed)
    except ConfigurationError as error:
        raise as_written(parsed, error) from error


def _wanted(parsed: argparse.Namespace) -> Wanted:
    if parsed.url is None:
        raise ConfigurationError("the server's URL is missing", remedy="write 'toutates bench HOST:PORT --model NAME'")
    if parsed.api != "v2" and not parsed.protocol and "://" not in parsed.url:
        parsed.protocol = HTTP
    tls = _tls(parsed)
    endpoint = parse_endpoint(parsed.url, parsed.protocol, tls)
    other = parse_endpoint(parsed.compare, endpoint.protocol, tls, "--compare") if parsed.compare else None
    questions = _questions(parsed, endpoint)
    threshold = None
    if parsed.pa_threshold is not None and not parsed.pa_search:
        threshold = _condition(f"p{parsed.pa_percentile or 50}>{parsed.pa_threshold:g}ms", "--latency-threshold")
    wanted = Wanted(
        endpoint,
        other,
        _metrics(parsed.metrics_url),
        questions,
        _loads(parsed, endpoint),
        parsed.repeats or (6 if other else 3),
        [_condition(text, "--fail-if") for text in parsed.fail_if],
        [_target(text) for text in parsed.slo],
        threshold,
        _within(parsed),
        parsed.processes or max(1, usable_cpus() // 2),
    )
    _check_together(parsed, wanted)
    return wanted


def _check_together(parsed: argparse.Namespace, wanted: Wanted) -> None:
    if wanted.other and wanted.targets:
        raise ConfigurationError("cannot be had with --slo", key="--compare", remedy="leave one out")
    if wanted.other and len(wanted.loads) > 1:
        raise ConfigurationError("cannot be had with a range", key="--compare", remedy="give one load")
    if wanted.other and wanted.repeats < 2:
        raise ConfigurationError(
            "is too few to compare", key="--repeats", value=str(wanted.repeats), remedy="give 2 or more"
        )
    if wanted.questions.sequences and (wanted.loads[0].rate is not None or wanted.targets):
        raise ConfigurationError(
            "cannot be had in an open loop",
            key="--sequence-length",
            remedy="leave out --rate and --slo; give --concurrency",
        )
    if wanted.questions.sequences and wanted.endpoint.protocol != GRPC:
        raise ConfigurationError("is for gRPC", key="--sequence-length", remedy="write grpc:// before the address")
    if wanted.questions.streams and wanted.endpoint.protocol != GRPC:
        raise ConfigurationError("is for gRPC", key="--streaming", remedy="write grpc:// before the address")
    if parsed.shared_memory != "none" and wanted.questions.api != "v2":
        raise ConfigurationError("is for the v2 protocol", key="--shared-memory", remedy="leave it out")


def _tls(parsed: argparse.Namespace) -> Tls | None:
    if parsed.tls_key and not parsed.tls_cert:
        raise ConfigurationError("needs --tls-cert too", key="--tls-key", value=parsed.tls_key)
    told = (parsed.tls_ca, parsed.tls_cert, parsed.tls_server_name)
    if not (parsed.tls or parsed.tls_no_verify or any(told)):
        return None
    return Tls(parsed.tls_ca, parsed.tls_cert, parsed.tls_key, parsed.tls_server_name, not parsed.tls_no_verify)


def _metrics(url: str | None) -> tuple[Endpoint, str] | None:
    if url is None:
        return None
    scheme, separator, rest = url.rpartition("://")
    server, _, path = rest.partition("/")
    return parse_endpoint(f"{scheme or 'http'}{separator or '://'}{server}", HTTP, None, "--metrics-url"), "/" + (
        path or "metrics"
    )


def _questions(parsed: argparse.Namespace, endpoint: Endpoint) -> Questions:
    reference = NO_CHECK if parsed.no_check else parsed.reference or FIRST_ANSWER
    if reference.endswith(".onnx") and not Path(reference).is_file():
        raise ConfigurationError("is no file", key="--reference", value=reference)
    if reference not in (FIRST_ANSWER, NO_CHECK) and not reference.endswith(".onnx"):
        parse_endpoint(reference, endpoint.protocol, None, "--reference")
    sequences = None
    if parsed.sequence_length:
        variation = parsed.sequence_length_variation / 100
        if not 0 <= variation <= 1:
            raise ConfigurationError("must be from 0 to 100", key="--sequence-length-variation", value=f"{variation:%}")
        sequences = Sequences(parsed.sequence_length, variation, parsed.start_sequence_id)
    check_source(parsed.data)
    return Questions(
        _targets(parsed),
        parsed.api,
        DataSettings(parsed.data, parsed.batch, {}, parsed.string_length, parsed.string_data),
        parsed.inputs,
        parsed.outputs,
        _fields(parsed.header, endpoint),
        dict(_parameter(text) for text in parsed.request_parameter),
        parsed.streaming,
        sequences,
        parsed.shared_memory == "system",
        parsed.output_shared_memory_size or 0,
        reference,
    )


def _fields(texts: Sequence[str], endpoint: Endpoint) -> dict[str, str]:
    fields = {}
    for text in texts:
        name, colon, value = text.partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not name or any(not 32 <= ord(one) < 127 for one in name + value):
            raise ConfigurationError("is no header field", key="--header", value=name, remedy="write NAME:VALUE")
        fields[name.lower() if endpoint.protocol == GRPC else name] = value
    return fields


def _parameter(text: str) -> tuple[str, str | int | bool | float]:
    name, _, rest = text.partition(":")
    value, _, kind = rest.rpartition(":")
    read: Any = {"int": int, "uint": int, "string": str, "double": float, "bool": _bool}.get(kind)
    try:
        if not name or read is None:
            raise ValueError
        return name, read(value)
    except (ValueError, KeyError):
        raise ConfigurationError(
            "is no parameter",
            key="--request-parameter",
            value=text,
            remedy="write NAME:VALUE:TYPE, as in priority:1:int",
        ) from None


def _bool(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _loads(parsed: argparse.Namespace, endpoint: Endpoint) -> list[Load]:
    arrivals = _arrivals(parsed.arrivals or "poisson")
    _check_arrivals(parsed, arrivals)
    if parsed.rate is not None and parsed.concurrency is not None and not parsed.slo:
        raise ConfigurationError(
            "is of a closed loop, and --rate of an open one", key="--concurrency", remedy="give one"
        )
    if parsed.seconds == 0:
        raise ConfigurationError("must be above 0", key="--seconds", value="0")
    if not 0 <= parsed.warmup <= 600:
        raise ConfigurationError("must be from 0 to 600", key="--warmup", value=f"{parsed.warmup:g}")
    base = Load(
        endpoint.host,
        endpoint.port,
        (),
        parsed.connections or (_HTTP_CONNECTIONS if endpoint.protocol == HTTP else _CONNECTIONS),
        None,
        parsed.seconds or 2.0,
        arrivals,
        seed=parsed.seed,
        warm_s=parsed.warmup,
        processes=parsed.processes or 1,
        protocol=endpoint.protocol,
        tls=endpoint.tls,
    )
    if parsed.rate is None and arrivals.gaps_ns and not parsed.slo:
        mean_s = sum(arrivals.gaps_ns) / len(arrivals.gaps_ns) / 1e9
        return [replace(base, rate=1 / mean_s)]
    if parsed.rate is not None and not parsed.slo:
        rates = _range(parsed.rate, "--rate", _MOST_RATE)
        return [replace(base, rate=rate) for rate in rates]
    counts = _range(parsed.concurrency or "16", "--concurrency", 1_000_000)
    if any(count != int(count) for count in counts):
        raise ConfigurationError("must be whole numbers", key="--concurrency", value=parsed.concurrency)
    # Over HTTP/1.1 a connection has one request under way.
    return [
        replace(
            base,
            under_way=int(count),
            connections=int(count) if endpoint.protocol == HTTP else min(base.connections, int(count)),
        )
        for count in counts
    ]


def _check_arrivals(parsed: argparse.Namespace, arrivals: Arrivals) -> None:
    """A trace and a ramp say themselves how much is sent; all others need a rate."""
    told = parsed.arrivals
    if told and not (arrivals.gaps_ns or parsed.rate or parsed.slo):
        raise ConfigurationError(
            "is of an open loop, and there is no rate", key="--arrivals", value=told, remedy="give --rate or --slo"
        )
    if parsed.slo and (arrivals.gaps_ns or arrivals.ramp_to is not None):
        raise ConfigurationError(
            "has a rate of its own, and --slo searches for one", key="--arrivals", value=told, remedy="leave one out"
        )
    if arrivals.gaps_ns and (parsed.rate or parsed.concurrency):
        flag = "--rate" if parsed.rate else "--concurrency"
        raise ConfigurationError(
            f"says when requests are sent, and {flag} too", key="--arrivals", value=told, remedy="leave one out"
        )


def _within(parsed: argparse.Namespace) -> tuple[float, float] | None:
    """The ends of a range of rates, where a knee is searched for."""
    if parsed.rate is None or not parsed.slo:
        return None
    first, last, _ = _ends(parsed.rate, "--rate", _MOST_RATE)
    return first, last


def _range(text: str, flag: str, most: float) -> list[float]:
    """The numbers of ``N`` or ``START:END[:STEP]``, the end included."""
    start, end, step = _ends(text, flag, most)
    count = int((end - start) / step + 1e-9) + 1
    if count > _MOST_POINTS:
        raise ConfigurationError(f"is a range of {count} loads", key=flag, value=text, remedy="give a larger STEP")
    return [start + place * step for place in range(count)]


def _ends(text: str, flag: str, most: float) -> tuple[float, float, float]:
    """The first number, the last one and the step of ``N`` or ``START:END[:STEP]``."""
    try:
        parts = [float(part) for part in text.split(":")]
        start, end, step = {1: (parts * 3)[:3], 2: [*parts, 1.0], 3: parts}[len(parts)]
        if not (0 < start <= end <= most and step > 0 and math.isfinite(step)):
            raise ValueError
    except (ValueError, KeyError):
        raise ConfigurationError(
            f"is no number above 0 and at most {most:.0f}, and no range",
            key=flag,
            value=text,
            remedy="write N or 1:16:5",
        ) from None
    return start, end, step


def _arrivals(text: str) -> Arrivals:
    kind, _, value = text.partition(":")
    try:
        match kind:
            case "constant" | "poisson" if not value:
                return Arrivals(0.0 if kind == "constant" else 1.0)
            case "gamma":
                return Arrivals(float(value))
            case "burst":
                return Arrivals(1.0, burst=int(value))
            case "ramp":
                return Arrivals(1.0, ramp_to=_within_most(float(value)))
            case "trace":
                return Arrivals(gaps_ns=_trace(Path(value)))
            case _:
                raise ValueError
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", key="--arrivals", value=text) from None
    except ValueError as error:
        raise ConfigurationError(
            f"cannot be used: {error}" if str(error) else "is no kind of arrivals",
            key="--arrivals",
            value=text,
            remedy="write constant, poisson or gamma:4, burst:10, ramp:2000 or trace:FILE",
        ) from None


def _trace(path: Path) -> tuple[int, ...]:
    gaps = [float(line) * 1e3 for line in path.read_text().split()]
    if not gaps:
        raise ValueError("the trace holds no gaps")
    if not all(map(math.isfinite, gaps)):
        raise ValueError("the gaps of a trace must be finite")
    if mean := sum(gaps) / len(gaps):
        _within_most(1e9 / mean)
    return tuple(map(round, gaps))


def _within_most(rate: float) -> float:
    if rate > _MOST_RATE:
        raise ValueError(f"{rate:g} requests/s; at most {_MOST_RATE} can be sent")
    return rate


def _targets(parsed: argparse.Namespace) -> list[Target]:
    if not parsed.model:
        raise ConfigurationError("the model is missing", remedy="add --model NAME")
    by_model: dict[str, dict[str, list[int]]] = {}
    for text in parsed.shape:
        name, _, numbers = text.rpartition(":")
        model, _, tensor = name.rpartition(".")
        try:
            axes = [int(number) for number in numbers.split(",")]
        except ValueError:
            axes = [-1]
        if not tensor or min(axes) < 0:
            raise ConfigurationError(
                "is no shape", key="--shape", value=text, remedy="write INPUT:1,64 or MODEL.INPUT:1,64"
            )
        by_model.setdefault(model, {})[tensor] = axes
    if parsed.zipf is not None and not 0 <= parsed.zipf <= 20:
        raise ConfigurationError("must be from 0 to 20", key="--zipf", value=f"{parsed.zipf:g}")
    targets = []
    for place, text in enumerate(parsed.model, start=1):
        name, equals, number = text.partition("=")
        try:
            weight = float(number) if equals else 1.0
        except ValueError:
            weight = -1
        if not name or not 0 < weight < 1e9:
            raise ConfigurationError(
                "is no model with its weight", key="--model", value=text, remedy="write NAME or NAME=2.5"
            )
        weight = weight if parsed.zipf is None else place**-parsed.zipf
        shapes = {**by_model.get("", {}), **by_model.get(name, {})}
        targets.append(Target(name, parsed.model_version, weight, shapes))
    if unknown := by_model.keys() - {"", *(target.model for target in targets)}:
        raise ConfigurationError(
            "names a model that is not asked", key="--shape", value=sorted(unknown)[0], remedy="add it by --model"
        )
    return targets


def _condition(text: str, flag: str) -> Condition:
    try:
        return read_condition(text)
    except ValueError as error:
        raise ConfigurationError(str(error), key=flag, value=text) from None


def _target(text: str) -> Condition:
    try:
        return read_target(text)
    except ValueError as error:
        raise ConfigurationError(str(error), key="--slo", value=text) from None
