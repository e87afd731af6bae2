"""A storm of clients on one server, and the judgement of every answer: what ``test_stress`` and the long mode share.

Invariant: a request is answered under its own id with what ONNX Runtime makes of its rows, whoever shared its batch,
or it fails as its client asked for: cancelled, out of time, its row poisoned, or turned away by the one ring that is
small enough to be full. When the storm is over, nothing of it is left: rings, sockets and counters say so.

The clients are tritonclient's, each with a connection of its own, and next to them raw sockets that are closed in the
middle of their requests. Which request a client sends, and what becomes of it, follows from the seed; in which order
the requests of several clients meet does not.
"""

from __future__ import annotations

import heapq
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from tests.e2e.models import build_repository
from tests.e2e.process import ServerProcess
from tests.e2e.support import INFER, Tensor, bytes_tensor, channel_to, request, statistics_of, triton
from tests.e2e.wire import Client, framed
from tests.waiting import wait_until

__all__ = ["MODELS", "Kind", "Storm", "StormError", "Tally", "build_kinds"]

#: What the storm's repository serves (``--load-models``).
MODELS: Final = ("mlp", "dynamic", "identity_BYTES", "gather", "slow")

_POOL_ROWS: Final = 64
#: Lengths of rows of the model "dynamic", hence its lanes. The last ones' outputs are too large to be copied out.
_LENGTHS: Final = (1, 3, 16, 700, 3_000)
#: A ring that holds all that the clients can have under way, and what those who left may have left in it.
_WIDE: Final = 1_024
#: An index that makes the model "gather" fail at run time.
_POISON: Final = 99
_PATIENCE_S: Final = 120.0
_CONFIG: Final = "backend: supertensor\nbatch_size: {}\ncapacity: {}\nnum_executors: {}\nallocator: cpu\n"
#: A client in the storm has at most so many requests under way.
_WINDOWS: Final = (1, 2, 5, 12)


class StormError(AssertionError):
    """The invariant broke; the text has the seed."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows of one shape, and what ONNX Runtime makes of them.

    Attributes:
        inputs, outputs: [rows, *row]; BYTES as an object array of bytes.
    """

    inputs: npt.NDArray[Any]
    outputs: npt.NDArray[Any]

    def differences(self, chosen: Sequence[int], answer: npt.NDArray[Any] | None) -> str:
        """How ``answer`` differs from ONNX Runtime's for the rows ``chosen``, in words; "" if it does not."""
        expected = self.outputs[chosen]
        if answer is None or answer.shape != expected.shape or answer.dtype != expected.dtype:
            return f"expected {expected.dtype}{expected.shape}, got {answer if answer is None else answer.shape}"
        if expected.dtype == np.float32:
            # Rows run in company differ in the last bits: matrix products are summed in another order.
            wrong = ~np.isclose(answer, expected, rtol=1e-4, atol=1e-4)
        else:
            wrong = answer != expected
        if not wrong.any():
            return ""
        row = int(np.argwhere(wrong)[0][0])
        return f"row {row} of {len(chosen)}: expected {expected[row]}, got {answer[row]}"


@dataclass(frozen=True, slots=True)
class Kind:
    """One model of the storm.

    Attributes:
        weight: share of the requests.
        always_room: whether its ring holds all there can be, so that no request may be turned away.
    """

    model: str
    datatype: str
    batch_size: int
    capacity: int
    executors: int
    weight: int
    pools: Sequence[Pool]

    @property
    def always_room(self) -> bool:
        """See the class."""
        return self.capacity == _WIDE


def build_kinds(root: Path, seed: int) -> list[Kind]:
    """Write the storm's repository, and let ONNX Runtime answer random rows for each of its models.

    Args:
        root: an empty folder.
        seed: of the rows.
    """
    build_repository(root)
    rng = np.random.default_rng(seed)
    texts = [f"{'é' * int(rng.integers(0, 20))} {number}".encode() for number in range(_POOL_ROWS * 4)]
    floats = [rng.normal(size=(_POOL_ROWS, length)).astype(np.float32) for length in (64, *_LENGTHS)]
    inputs: Mapping[str, list[npt.NDArray[Any]]] = {
        "mlp": floats[:1],
        "dynamic": floats[1:],
        "identity_BYTES": [np.array(texts, object).reshape(_POOL_ROWS, 4)],
        "gather": [rng.integers(-8, 8, (_POOL_ROWS, 1))],
        "slow": [rng.integers(0, 3, (_POOL_ROWS, 1))],
    }
    settings = {
        "mlp": ("FP32", 8, _WIDE, 2, 5),
        "dynamic": ("FP32", 8, _WIDE, 2, 4),
        "identity_BYTES": ("BYTES", 8, _WIDE, 2, 3),
        "gather": ("INT64", 8, _WIDE, 1, 2),
        # Milliseconds per batch, so that requests meet in batches, and often find the ring full.
        "slow": ("INT64", 8, 4, 1, 3),
    }
    kinds = []
    for model, (datatype, batch_size, capacity, executors, weight) in settings.items():
        folder = root / model / "1"
        (folder / "config.yaml").write_text(_CONFIG.format(batch_size, capacity, executors))
        session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        pools = [Pool(rows, _answers(session, rows)) for rows in inputs[model]]
        kinds.append(Kind(model, datatype, batch_size, capacity, executors, weight, pools))
    return kinds


def _answers(session: onnxruntime.InferenceSession, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What a session makes of ``rows``; texts go in and come out as str, and are kept as the bytes of the wire."""
    is_text = rows.dtype == object
    feed = np.array([text.decode() for text in rows.flat], object).reshape(rows.shape) if is_text else rows
    outputs: npt.NDArray[Any] = session.run(None, {"INPUT": feed})[0]
    if is_text:
        outputs = np.array([text.encode() for text in outputs.flat], object).reshape(outputs.shape)
    return outputs


@dataclass(slots=True)
class Tally:
    """What became of the requests to one model, as their clients saw it.

    Attributes:
        sent: requests; all of the following are among them.
        ok: answered, and rightly.
        poisoned: failed for the row that was made to fail.
        refused: turned away by a full ring.
        batches_alone: that the answered ones would have taken if none had shared a batch.
        left: cancelled, out of time, or sent by a client that closed its connection: the server may have answered.
        sent_rows, ok_rows, refused_rows, left_rows: their rows.
    """

    sent: int = 0
    sent_rows: int = 0
    ok: int = 0
    ok_rows: int = 0
    batches_alone: int = 0
    poisoned: int = 0
    refused: int = 0
    refused_rows: int = 0
    left: int = 0
    left_rows: int = 0


@dataclass(slots=True)
class Question:
    """One request under way: some rows of a pool, and the statuses that may end it beside OK."""

    kind: Kind
    pool: Pool
    chosen: list[int]
    poisoned: bool
    request_id: str
    may_end_with: set[str] = field(default_factory=set)
    context: Any = None

    def values(self) -> npt.NDArray[Any]:
        """The input's content."""
        values = self.pool.inputs[self.chosen]
        if self.poisoned:
            values[len(self.chosen) // 2] = _POISON
        return values

    def tensor(self) -> Any:
        """The input, as tritonclient takes it."""
        values = self.values()
        tensor = triton.InferInput("INPUT", values.shape, self.kind.datatype)
        return tensor.set_data_from_numpy(values)

    def message(self) -> bytes:
        """The whole request, as it goes into a message."""
        values = self.values()
        raw = bytes_tensor(*values.flat) if values.dtype == object else values.tobytes()
        tensor = Tensor("INPUT", self.kind.datatype, values.shape, raw)
        serialized: bytes = request(self.kind.model, tensor, id=self.request_id).SerializeToString()
        return serialized


class Party:
    """What both sorts of clients share: questions that follow from the seed, and tallies of what became of them."""

    def __init__(self, storm: Storm, name: str) -> None:
        self.storm = storm
        self.name = name
        self.random = random.Random(f"{storm.seed} {name}")
        self.tallies = {kind.model: Tally() for kind in storm.kinds}
        self.asked = 0

    def question(self) -> Question:
        """The next one, counted as sent."""
        rng = self.random
        [kind] = rng.choices(self.storm.kinds, [kind.weight for kind in self.storm.kinds])
        rows = rng.choice([1, 1, 1, 1, 2, 3, kind.batch_size, kind.batch_size + 1, rng.randint(1, 3 * kind.batch_size)])
        self.asked += 1
        question = Question(
            kind,
            rng.choice(kind.pools),
            [rng.randrange(_POOL_ROWS) for _ in range(rows)],
            poisoned=kind.model == "gather" and rng.random() < 0.1,
            request_id=rng.choice(["", f"{self.name}-{self.asked}", f"{self.name}-{self.asked}-{'ü' * 80}"]),
        )
        self.count(question, "sent")
        return question

    def count(self, question: Question, outcome: str) -> None:
        """Add a question to a counter of its model's tally, and its rows to that of its rows."""
        tally = self.tallies[question.kind.model]
        setattr(tally, outcome, getattr(tally, outcome) + 1)
        if outcome != "poisoned":
            rows = f"{outcome}_rows"
            setattr(tally, rows, getattr(tally, rows) + len(question.chosen))

    def judge(self, question: Question, result: Any, error: Any) -> None:
        """Count an outcome.

        Raises:
            StormError: it is not one that this question may have.
        """
        if error is None:
            response = result.get_response()
            if response.id != question.request_id:
                raise self.storm.broken(self.name, question, f"answered under the id {response.id!r}")
            if question.poisoned:
                raise self.storm.broken(self.name, question, "answered, though one of its rows cannot be run")
            if differences := question.pool.differences(question.chosen, result.as_numpy("OUTPUT")):
                raise self.storm.broken(self.name, question, differences)
            self.count(question, "ok")
            self.tallies[question.kind.model].batches_alone += -(-len(question.chosen) // question.kind.batch_size)
            return
        status = str(error.status()).removeprefix("StatusCode.")
        if status == "RESOURCE_EXHAUSTED" and not question.kind.always_room and "rows waiting or running" in str(error):
            self.count(question, "refused")
        elif status == "INTERNAL" and question.poisoned and f"idx={_POISON}" in str(error):
            self.count(question, "poisoned")
        elif status in question.may_end_with:
            self.count(question, "left")
        else:
            raise self.storm.broken(self.name, question, f"ended with {error}")


class PoliteClient(Party):
    """A tritonclient with a window of requests under way, some of which it cancels or gives little time."""

    def __init__(self, storm: Storm, number: int) -> None:
        super().__init__(storm, f"client-{number}")
        self._window = _WINDOWS[number % len(_WINDOWS)]
        self._under_way: dict[int, Question] = {}
        #: (when, number) of the requests that will be cancelled
        self._cancels: list[tuple[float, int]] = []
        self._outcomes: SimpleQueue[tuple[int, Any, Any]] = SimpleQueue()

    def run(self) -> None:
        """Talk over one connection after the other until the storm is over."""
        while not self.storm.is_over(self.asked):
            with self.storm.connection() as client:
                for _ in range(self.random.randrange(20, 300)):
                    if self.storm.is_over(self.asked):
                        break
                    self._ask(client)
                    while len(self._under_way) >= self._window:
                        self._take()
                    self._cancel_what_is_due()
                if self.random.random() < 0.5:  # the others are dropped with requests under way
                    while self._under_way:
                        self._take()
                for question in self._under_way.values():
                    question.may_end_with.add("CANCELLED")
            while self._under_way:
                self._take()

    def _ask(self, client: Any) -> None:
        rng = self.random
        question = self.question()
        number = self.asked
        timeout_s = None
        fate = rng.random()
        if fate < 0.12:
            timeout_s = rng.expovariate(1 / 0.005)
            question.may_end_with.add("DEADLINE_EXCEEDED")
        elif fate < 0.3:
            question.may_end_with.add("CANCELLED")
            delay_s = rng.choice([0.0, rng.expovariate(1 / 0.003)])
            heapq.heappush(self._cancels, (time.monotonic() + delay_s, number))
        self._under_way[number] = question
        question.context = client.async_infer(
            question.kind.model,
            [question.tensor()],
            lambda result, error: self._outcomes.put((number, result, error)),
            request_id=question.request_id,
            client_timeout=timeout_s,
        )

    def _cancel_what_is_due(self) -> None:
        while self._cancels and self._cancels[0][0] <= time.monotonic():
            _, number = heapq.heappop(self._cancels)
            if number in self._under_way:
                self._under_way[number].context.cancel()

    def _take(self) -> None:
        """Wait for an outcome, or until a request is to be cancelled."""
        timeout_s = self._cancels[0][0] - time.monotonic() if self._cancels else _PATIENCE_S
        try:
            number, result, error = self._outcomes.get(timeout=max(0.0, timeout_s))
        except Empty:
            if not self._cancels:
                stuck = next(iter(self._under_way.values()))
                raise self.storm.broken(self.name, stuck, f"no answer for {_PATIENCE_S} s") from None
            self._cancel_what_is_due()
            return
        self.judge(self._under_way.pop(number), result, error)


class RudeClient(Party):
    """Raw connections that are closed, often by a reset, with requests under way and half sent."""

    def __init__(self, storm: Storm, number: int) -> None:
        super().__init__(storm, f"rude-{number}")

    def run(self) -> None:
        """Come and go until the storm is over."""
        while not self.storm.is_over(self.asked):
            self._visit()
            time.sleep(self.random.uniform(0, 0.03))  # it is there for what it breaks, not to take the processor

    def _visit(self) -> None:
        rng = self.random
        with socket.create_connection(("127.0.0.1", self.storm.server.port), timeout=_PATIENCE_S) as sock:
            client = Client(sock)
            for _ in range(rng.randint(1, 8)):
                question = self.question()
                self.count(question, "left")
                data = framed(question.message())
                whole = rng.random() < 0.8
                stream_id = client.start(INFER)
                client.send(stream_id, data if whole else data[: rng.randrange(len(data))], end=whole)
                if rng.random() < 0.2:
                    client.connection.reset_stream(stream_id, 8)
                    client.flush()
            time.sleep(rng.choice([0.0, rng.uniform(0, 0.01)]))
            if rng.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Storm:
    """See the module. Made once per server; ``rage`` may be called again and again, and the tallies add up.

    Args:
        server: serves MODELS of the repository that ``kinds`` came with, and nobody else.
        kinds: the models.
        seed: what the clients do follows from it.
        clients: connections of tritonclient at a time; half as many are of the raw kind.
    """

    def __init__(self, server: ServerProcess, kinds: Sequence[Kind], seed: int, clients: int = 12) -> None:
        self.server = server
        self.kinds = kinds
        self.seed = seed
        self.tallies = {kind.model: Tally() for kind in kinds}
        #: batches run, by model, as of the last ``check_calm``
        self.executions: dict[str, int] = {}
        self._clients = clients
        self._rages = 0
        self._until = 0.0
        self._requests = 0
        self._failure: BaseException | None = None

    def rage(self, seconds: float, requests: int = 0) -> None:
        """Let the clients loose.

        Args:
            seconds: at least.
            requests: that each client sends at least.

        Raises:
            StormError: the invariant broke.
        """
        self._rages += 1
        self._until = time.monotonic() + seconds
        self._requests = requests
        first = self._rages * 1_000
        parties: list[PoliteClient | RudeClient] = [PoliteClient(self, first + at) for at in range(self._clients)]
        parties += [RudeClient(self, first + at) for at in range(self._clients // 2)]
        threads = [threading.Thread(target=self._run, args=(party,)) for party in parties]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        for party in parties:
            for model, tally in party.tallies.items():
                self._add(model, tally)

    def _run(self, party: PoliteClient | RudeClient) -> None:
        try:
            party.run()
        except BaseException as error:
            error.add_note(f"in {party.name}; seed {self.seed}")
            self._failure = self._failure or error

    def _add(self, model: str, tally: Tally) -> None:
        total = self.tallies[model]
        for name in Tally.__slots__:
            setattr(total, name, getattr(total, name) + getattr(tally, name))

    def is_over(self, asked: int) -> bool:
        """Whether a client that has sent ``asked`` requests is to stop."""
        return self._failure is not None or (time.monotonic() >= self._until and asked >= self._requests)

    def broken(self, who: str, question: Question, text: str) -> StormError:
        """The error to raise for a question that did not go well."""
        return StormError(
            f"seed {self.seed}, {who}: {question.kind.model}, {len(question.chosen)} rows of "
            f"{question.pool.inputs.shape[1:]}, id {question.request_id[:40]!r}: {text}"
        )

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A tritonclient whose connection no other one shares."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        with triton.InferenceServerClient(self.server.address, channel_args=options) as client:
            yield client

    # --- afterwards --------------------------------------------------------------------------------------------------

    def check_calm(self) -> None:
        """See that nothing of the storm is left: no connection is open, every ring is empty, the counters add up.

        Raises:
            StormError: something is.
        """
        self._wait_for_closed_connections()
        party = Party(self, "calm")
        with self.connection() as client:
            for kind in self.kinds:
                self._fill_ring(party, client, kind)
        for model, tally in party.tallies.items():
            self._add(model, tally)
        for kind in self.kinds:
            self._check_statistics(kind)
        log = self.server.log
        # Soaks have a Python model whose process dies.
        errors = [line for line in log.splitlines() if " ERROR " in line and ": its process is gone (" not in line]
        if "Traceback" in log or errors:
            raise StormError(f"seed {self.seed}: the server logged an error:\n{self.server.log[-4000:]}")

    def _wait_for_closed_connections(self) -> None:
        try:
            wait_until(lambda: not self.server.open_connections())
        except AssertionError:
            left = self.server.open_connections()
            raise StormError(
                f"seed {self.seed}: the server still has {left} connections of clients that are gone"
            ) from None

    def _fill_ring(self, party: Party, client: Any, kind: Kind) -> None:
        """A request as large as the ring is answered once no batch is in it."""
        pool = kind.pools[0]
        chosen = [row % _POOL_ROWS for row in range(kind.batch_size * kind.capacity)]
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            question = Question(kind, pool, chosen, poisoned=False, request_id=kind.model)
            party.count(question, "sent")
            try:
                result = client.infer(kind.model, [question.tensor()], request_id=kind.model)
            except triton.InferenceServerException as error:
                if error.status() != "StatusCode.RESOURCE_EXHAUSTED" or time.monotonic() > deadline:
                    raise self.broken("calm", question, f"the ring is not empty: {error}") from None
                party.count(question, "refused")
                time.sleep(0.02)
            else:
                party.judge(question, result, None)
                return

    def _check_statistics(self, kind: Kind) -> None:
        tally = self.tallies[kind.model]
        with channel_to(self.server.address) as channel:
            statistics = statistics_of(channel, kind.model)
        success = statistics.inference_stats.success.count
        fail = statistics.inference_stats.fail.count
        run_rows = sum(batch.batch_size * batch.compute_infer.count for batch in statistics.batch_stats)
        facts = {
            "answers seen are counted": tally.ok <= success <= tally.ok + tally.left,
            "failures seen are counted": tally.poisoned <= fail <= tally.poisoned + tally.left,
            "refusals are not": success + fail <= tally.sent - tally.refused,
            "rows answered": tally.ok_rows <= statistics.inference_count <= tally.ok_rows + tally.left_rows,
            "rows run": statistics.inference_count <= run_rows <= tally.sent_rows - tally.refused_rows,
            "batches": statistics.execution_count == sum(b.compute_infer.count for b in statistics.batch_stats),
            "batch size": all(1 <= batch.batch_size <= kind.batch_size for batch in statistics.batch_stats),
        }
        self.executions[kind.model] = statistics.execution_count
        if wrong := [fact for fact, holds in facts.items() if not holds]:
            raise StormError(f"seed {self.seed}: {kind.model}: {wrong} do not hold of {tally} and {statistics}")
