"""Requests on their way: read, computed, and answered; what may take long is done beside the worker.

begin ─▶ read (beside the worker, if large) ─▶ TextModel.add ··· on_done, in any thread
                                                               ─▶ worker: written (beside it, if large), sent
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from threading import get_ident
from typing import Any, Final

from toutates.access.callers import Caller
from toutates.api.rest.answers import Answer, access_fields
from toutates.api.rest.calls import RestHttpCall
from toutates.api.text.alike import AlikeBodies, Crowd
from toutates.api.text.lookup import ANY, Lookup
from toutates.api.text.observing import TextObserver
from toutates.api.text.problems import Problem, as_problem
from toutates.api.text.reading import LARGE_BYTES
from toutates.api.text.routes import Asked, Asks, ByTask, Form, Page, Route, Stepwise, answer_head
from toutates.api.waiting_call import WaitingCall
from toutates.backends.text.interface import (
    MOST_CHARACTERS_HERE,
    Float32,
    FoundText,
    SparseVector,
    TextModel,
    TextOptions,
    TextResult,
    TextsHere,
)
from toutates.infer.inflight import Inflight
from toutates.infer.parking import Parking
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.net.side_thread import SideThread, outcome_of
from toutates.protocol.strings import rest
from toutates.system.errors import CallerLeft, ExecutionFailed, NotLoaded, Overloaded, RequestError, anew

__all__ = ["TextWork"]

#: Runs of texts at the end of a round in its worker's thread; what is left then goes to the models' executors.
MOST_RUNS_HERE: Final = 4
#: Numbers of an answer that the worker writes itself, in 1 ms at most.
SMALL_VALUES: Final = 8_192
#: What a number takes in the answer, beside its four bytes in the vector.
BYTES_PER_VALUE: Final = 24
#: How long one step of ``Stepwise`` may go on before other connections get their turn.
STEP_NS: Final = 5_000_000
#: Bytes of an answer between two pauses of what writes it.
PIECE_BYTES: Final = 65_536


class TextWork:
    """Does the work for one worker. Its methods are called on the worker's thread, where they do not say otherwise.

    Args:
        worker: whose requests these are.
        side: the thread beside the worker's.
        get_table: returns the table of models as it is now.
        observer: counts and observes the requests.
        inflight: bounds the requests that wait for their answer; None for no bound.
        parking: where requests wait for models that are loaded on demand; None where none are.
    """

    def __init__(
        self,
        worker: Worker,
        side: SideThread,
        get_table: Callable[[], ModelTable],
        observer: TextObserver,
        inflight: Inflight | None = None,
        parking: Parking | None = None,
    ) -> None:
        self.parking = parking
        self.worker = worker
        self.observer = observer
        self.inflight = inflight
        self.get_table = get_table
        self._side = side
        #: models with texts that were added in this round
        self._added: set[TextModel] = set()
        #: requests of this round that may be computed here, by what they have in common
        self.crowds: dict[object, Crowd] = {}
        #: the worker's thread, while it hands out what it has run itself; else 0, which no thread is
        self.runs_in = 0

    # --- answers -----------------------------------------------------------------------------------------------------

    def refuse(self, call: RestHttpCall, route: Route, form: Form, error: RequestError) -> None:
        """Answer a request with an error; does nothing for one whose caller has left."""
        problem = as_problem(error, route.texts)
        answer = form.refuse(problem)
        self.send(call, route, answer._replace(fields=answer.fields + access_fields(problem) + problem.fields), problem)

    def send(self, call: RestHttpCall, route: Route, answer: Answer, problem: Problem | None = None) -> None:
        """Give a short answer, which may be that of a problem."""
        self.observer.answered(call, route.path, answer.status, problem)
        call.reply(*answer)

    def show(self, call: RestHttpCall, route: Route, page: Page) -> None:
        """Answer a GET."""
        assert route.get is not None
        try:
            self.send(call, route, route.get(page))
        except RequestError as error:
            self.refuse(call, route, route.form, error)

    # --- from a body to the model ------------------------------------------------------------------------------------

    def begin(
        self,
        call: RestHttpCall,
        route: Route,
        lookup: Lookup,
        model: str,
        *,
        may_trace: bool,
        caller: Caller | None = None,
        bodies: AlikeBodies | None = None,
    ) -> None:
        """Answer a POST.

        Args:
            call: the request.
            route: its.
            lookup: finds its model.
            model: that the query names; "" for none.
            may_trace: whether its caller has it traced, if anything is.
            caller: who sends it; None where nobody asks.
            bodies: that are to learn from this one; None for none.
        """
        assert route.post is not None
        body = call.body
        self.observer.begin(call, route.path, may_trace=may_trace)
        request = _Request(self, call, route, lookup, caller, bodies)
        try:
            if len(body) > LARGE_BYTES:
                call.hold(len(body))
                request.held = len(body)
                self.aside(call, partial(_read, route, body, model), request.go_on)
                return
            asked = route.post.asked(body, model)
        except RequestError as error:
            request.end(error)
            return
        request.go_on(asked)

    def note_added(self, model: TextModel) -> None:
        """Texts were added to a model, which are to run from the round's end on."""
        if not (self._added or self.crowds):
            self.worker.at_round_end(self._commit)
        self._added.add(model)

    def gather(self, key: object, crowd: Crowd) -> None:
        """Have a crowd computed at the round's end, which may grow until then (``crowds``)."""
        if not (self._added or self.crowds):
            self.worker.at_round_end(self._commit)
        self.crowds[key] = crowd

    def join(self, request: _Request, text: str, model: TextModel, options: TextOptions, route: Route) -> None:
        """Have a request with one short text computed at the round's end, with others of its kind."""
        key = model, id(options), id(route)
        crowd: Any = self.crowds.get(key)
        if crowd is None:
            crowd = _Crowd(model, options, route)
            self.gather(key, crowd)
        crowd.requests.append(request)
        crowd.texts.append(text)

    def request_of(
        self,
        call: RestHttpCall,
        route: Route,
        lookup: Lookup,
        asked: Asked,
        found: FoundText,
        options: TextOptions,
    ) -> _Request:
        """A request of an anonymous caller for one text, which has a place among those in flight."""
        return _Request(self, call, route, lookup, None).begun(asked, found, options, counted=self.inflight is not None)

    def _commit(self) -> None:
        added, self._added = self._added, set()
        crowds, self.crowds = self.crowds, {}
        self.runs_in = get_ident()
        runs = MOST_RUNS_HERE
        try:
            for crowd in crowds.values():
                runs -= self._compute_here(crowd, runs, added)
            for model in added:
                model.commit()
        finally:
            self.runs_in = 0

    def _compute_here(self, crowd: Crowd, most: int, added: set[TextModel]) -> int:
        """Compute requests in this thread, and add those that it does not take to their model.

        Args:
            crowd: the requests.
            most: runs, at most.
            added: gets the model to which some were added.

        Returns:
            How many runs it were.
        """
        model, texts, first, runs = crowd.model, crowd.texts, 0, 0
        while first < len(texts) and runs < most:
            try:
                done = model.compute_here(texts[first:] if first else texts, crowd.options, self.worker.now_ns)
            except Exception as error:  # a bug of ours, which is to cost these requests no more than time
                self.worker.incidents.bug("texts computed by the worker", error)
                break
            if done is None:
                break
            runs += 1
            answered, some_added = crowd.answer(first, done)
            if some_added:
                added.add(model)
            if answered:
                self.observer.answered_alike(crowd.route.path, answered)
            first += len(done.vectors)
        if first < len(texts):
            crowd.add(first)
            added.add(model)
        return runs

    def aside(self, call: RestHttpCall, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have something done in the other thread, and go on with what it returns, or with the error that it raises.

        Raises:
            Overloaded: the system has no thread for it.
        """
        what = f"work for {call.head.method} {call.head.path[:100]}"

        def guarded() -> Any:
            try:
                if not call.open:
                    raise CallerLeft("the client has left")
                return work()
            except RequestError as error:
                return anew(error)

        def job() -> Callable[[], None]:
            return partial(then, outcome_of(guarded, what))

        try:
            self._side.put(call.connection, job)
        except RuntimeError:
            raise Overloaded("the server has no thread for this request") from None


def _read(route: Route, body: bytes | bytearray, model: str) -> Any:
    """In the other thread: read a body."""
    assert route.post is not None
    return route.post.asked(body, model)


def _write(call: RestHttpCall, pieces: Iterable[bytes]) -> list[bytes]:
    """In the other thread: write an answer, as long as somebody waits for it.

    Raises:
        CallerLeft: nobody does.
    """
    written: list[bytes] = []
    piece = bytearray()
    for part in pieces:
        piece += part
        if len(piece) > PIECE_BYTES:
            written.append(bytes(piece))
            piece.clear()
            rest()
            if not call.open:
                raise CallerLeft("the client has left")
    written.append(bytes(piece))
    return written


def _step(steps: Iterator[bytes], pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """In the other thread: make a few steps; returns the pieces so far, and whether these are all."""
    until_ns = time.monotonic_ns() + STEP_NS
    for piece in steps:
        pieces.append(piece)
        if time.monotonic_ns() > until_ns:
            return pieces, False
    return [b"".join(pieces)], True


@lru_cache(256)
def _with_prompt(options: TextOptions, prompt: str) -> TextOptions:
    return replace(options, prompt=prompt)


def _size(vector: Float32 | SparseVector) -> int:
    """How many numbers are written of a vector."""
    return 2 * len(vector.indices) if isinstance(vector, SparseVector) else vector.size


class _Crowd(Crowd):
    """Requests for one model, with the same options, by one route."""

    __slots__ = ("requests",)

    def __init__(self, model: TextModel, options: TextOptions, route: Route) -> None:
        super().__init__(model, options, route)
        self.requests: list[_Request] = []

    def answer(self, first: int, done: TextsHere) -> tuple[int, bool]:
        """See ``Crowd``."""
        answered, added = 0, False
        for request, vector, tokens in zip(self.requests[first:], done.vectors, done.tokens, strict=False):
            if vector is None:
                request.add()
                added = True
            else:
                answered += request.answer_here(vector, tokens, done)
        return answered, added

    def add(self, first: int) -> None:
        """See ``Crowd``."""
        for request in self.requests[first:]:
            request.add()


class _Request:
    """One request.

    Attributes:
        held: bytes that are counted for it.
    """

    __slots__ = (
        "_asked",
        "_bodies",
        "_call",
        "_caller",
        "_counted",
        "_form",
        "_found",
        "_lookup",
        "_options",
        "_route",
        "_work",
        "held",
    )

    def __init__(
        self,
        work: TextWork,
        call: RestHttpCall,
        route: Route,
        lookup: Lookup,
        caller: Caller | None,
        bodies: AlikeBodies | None = None,
    ) -> None:
        self._caller = caller
        self._bodies = bodies
        self._work = work
        self._call = call
        self._route = route
        self._form = route.form
        self._lookup = lookup
        self._asked: Any = None
        self._found: Any = None
        self._counted = False
        self.held = 0

    def begun(self, asked: Asked, found: FoundText, options: TextOptions, *, counted: bool) -> _Request:
        """The request, as it is when its text may be computed here."""
        self._asked, self._found, self._options, self._counted = asked, found, options, counted
        return self

    def go_on(self, asked: Asks | RequestError) -> None:
        """Go on with a body that was read."""
        call, work = self._call, self._work
        try:
            if isinstance(asked, ByTask):
                asked = asked.of(self._lookup)
            if isinstance(asked, Asked):
                self._compute(asked)
            elif isinstance(asked, RequestError):
                self.end(asked)
            elif isinstance(asked, Stepwise):
                found = self._lookup.find(asked.model, ANY)
                if self._caller is not None:
                    self._caller.take(1, work.worker.now_ns)
                steps = asked.steps(found)
                work.aside(call, partial(_step, steps, []), partial(self._stepped, steps, asked.ignored))
            else:
                self.end(None)
                work.send(call, self._route, asked)
        except NotLoaded as missing:
            self._wait(missing, asked)
        except Exception as error:
            self.fail(error)

    def _wait(self, missing: NotLoaded, asked: Any) -> None:
        """Go on once the model is there."""
        parking, call = self._work.parking, self._call
        size = max(self.held, len(call.body))
        try:
            if parking is None:
                self.end(missing)
                return
            if self._caller is not None:  # before anything is loaded for somebody who may not use it
                self._caller.check_model(asked.model or missing.model, (missing.model,))
            parking.check(missing.model, size)
        except RequestError as error:
            self.end(error)
            return
        if not self.held:
            self.hold(size)
        again = WaitingCall(call, partial(self.go_on, asked), self._work.worker, self.end, partial(self.end, None))
        parking.park(missing.model, again, size)

    def _compute(self, asked: Asked) -> None:
        call, work = self._call, self._work
        if asked.form is not None:
            self._form = asked.form
        find = asked.find
        found = self._lookup.find(asked.model, asked.wants) if find is None else find(work.get_table())
        if self._caller is not None:
            self._caller.check_model(found.name)
            self._caller.take(len(asked.texts), work.worker.now_ns)
        if asked.check is not None:
            asked.check(found)
        options = asked.options
        if found.prompt is not None and options.prompt is None:
            options = _with_prompt(options, found.prompt)
        inflight = work.inflight
        if inflight is not None:
            if inflight.count >= inflight.most:
                raise inflight.refusal()
            inflight.count += 1
            self._counted = True
        self._asked, self._found = asked, found
        if call.context is not None:
            version = work.get_table().models[found.name].versions[found.version].served
            if version is not None:
                work.observer.found(call, version, len(asked.texts))
        model = found.model
        if model.may_compute_here and len(asked.texts) == 1:
            text = asked.texts[0]
            if type(text) is str and len(text) <= MOST_CHARACTERS_HERE:
                self._options = options
                work.join(self, text, model, options, self._route)
                if self._bodies is not None:
                    self._bodies.learn(call.body, asked, found, options)
                return
        self._add(model, options)
        work.note_added(model)

    def add(self) -> None:
        """Add the text to its model after all, which is committed next."""
        try:
            found: FoundText = self._found
            self._add(found.model, self._options)
        except Exception as error:
            self.fail(error)

    def _add(self, model: TextModel, options: TextOptions) -> None:
        worker, caller = self._work.worker, self._caller
        identity = (caller and caller.identity) or worker.peer(self._call)
        model.add(self._asked.texts, options, self._done_soon, self._is_wanted, worker.now_ns, identity)

    def _is_wanted(self, by_ns: int) -> bool:
        """In any thread: whether the caller is there."""
        return self._call.open

    # --- from the model to the answer --------------------------------------------------------------------------------

    def answer_here(self, vector: Float32, tokens: int, done: TextsHere) -> bool:
        """Answer with the vector of the only text; returns whether it is still to be counted as answered."""
        call, asked = self._call, self._asked
        write = asked.write_one
        if write is None or call.context is not None or not call.open:
            self._done(TextResult((vector,), (tokens,), None, done.times, done.timing))
            return False
        try:
            parts = write(vector, tokens, self._found)
        except Exception as error:
            self.fail(error)
            return False
        if self._counted:
            self.end(None)
        call.responder.reply(call, parts, sum(map(len, parts[1:])))
        return True

    def _done_soon(self, result: TextResult) -> None:
        """In any thread: the texts are computed, or not."""
        work = self._work
        if work.runs_in == get_ident():
            self._done(result)
        else:
            work.worker.call_soon(partial(self._done, result))

    def _done(self, result: TextResult) -> None:
        try:
            if result.timing is not None and self._call.context is not None:
                self._work.observer.computed(self._call, result.timing)
            if result.error is not None:
                self.fail(result.error)
                return
            asked: Asked = self._asked
            vectors: Any = result.vectors
            values = sum([_size(vector) for vector in vectors])
            fields = asked.ignored if asked.fields is None else asked.ignored + asked.fields(result, asked)
            if values + asked.bulk <= SMALL_VALUES:
                self._send(fields, [b"".join(asked.write(result, self._found))])
                return
            self.hold(BYTES_PER_VALUE * values + asked.bulk)
            work = partial(_write, self._call, asked.write(result, self._found))
            self._work.aside(self._call, work, partial(self._written, fields))
        except Exception as error:
            self.fail(error)

    def _written(self, fields: bytes, pieces: list[bytes] | RequestError) -> None:
        try:
            if isinstance(pieces, RequestError):
                self.end(pieces)
            else:
                self._send(fields, pieces)
        except Exception as error:
            self.fail(error)

    def _stepped(self, steps: Iterator[bytes], fields: bytes, outcome: tuple[list[bytes], bool] | RequestError) -> None:
        """Some steps were done."""
        try:
            if isinstance(outcome, RequestError):
                self.end(outcome)
                return
            pieces, ended = outcome
            if ended:
                self._send(fields, pieces)
                return
            size = sum(map(len, pieces)) - self.held
            if size > 0:
                self.hold(size)
            self._work.aside(self._call, partial(_step, steps, pieces), partial(self._stepped, steps, fields))
        except Exception as error:
            self.fail(error)

    def _send(self, fields: bytes, pieces: list[bytes]) -> None:
        """Give the answer of a request that succeeded."""
        call = self._call
        length = sum(map(len, pieces)) if len(pieces) > 1 else len(pieces[0])
        head = answer_head(length, fields)
        self.end(None)
        if not call.open:
            self._work.observer.left(call, self._route.path)
            return
        self._work.observer.answered(call, self._route.path, 200, None)
        call.responder.reply(call, (head, *pieces), length)

    # --- ends --------------------------------------------------------------------------------------------------------

    def hold(self, size: int) -> None:
        """Count more bytes as held for the request."""
        self._call.hold(size)
        self.held += size

    def end(self, error: RequestError | None) -> None:
        """The request is over; answer it, if it had an error."""
        if self.held:
            self._call.hold(-self.held)
            self.held = 0
        if self._counted:
            self._counted = False
            assert self._work.inflight is not None
            self._work.inflight.count -= 1
            self._work.inflight.left += 1
        if error is None:
            return
        if self._call.open:
            self._work.refuse(self._call, self._route, self._form, error)
        else:
            self._work.observer.left(self._call, self._route.path)

    def fail(self, error: Exception) -> None:
        """The request is over; a bug of ours costs it alone."""
        if isinstance(error, RequestError):
            self.end(error)
            return
        worker = self._work.worker
        worker.incidents.bug(f"handler of {self._route.path}", error, worker.peer(self._call))
        self.end(ExecutionFailed("internal error"))
