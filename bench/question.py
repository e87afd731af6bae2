"""The request that a load consists of, and the right answers to it and to others."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb

from bench.errors import NoFigure
from bench.models import Model, Rows
from bench.protocols import GRPC, STREAM
from bench.rest_question import RestRequest, ask, ask_for_rows

__all__ = ["METHOD", "Question", "framed"]

METHOD = "/inference.GRPCInferenceService/ModelInfer"

# The first model call of a server may take long; an answer that takes longer than this is none.
_ANSWER_SECONDS = 60
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
# Rows of the sampled requests; as large ones are slow to send and to compute, fewer of those.
_SAMPLE_ROWS = (1, 1, 2, 3, 8)
_LARGE_ROW_BYTES = 100_000
# Of which the median tells how long one takes.
_RUNS = 5


class Question:
    """One row of random input for a model, as a request, and ONNX Runtime's own answers.

    Args:
        model: the model to ask. Outputs are FP32.

    Attributes:
        model: the same.
        message: the request over gRPC.
        body: the same, length-prefixed.
        run_seconds: how long ONNX Runtime takes for the row on one thread.
    """

    def __init__(self, model: Model) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.model = model
        self._session = ort.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
        self._rng = np.random.default_rng(11)
        self._rest: dict[str, RestRequest] = {}
        self._row = model.random_rows(self._rng, 1)
        self._ask(model)
        self._expected(self._row)
        taken = []
        for _ in range(_RUNS):
            begin = time.perf_counter()
            self._expected(self._row)
            taken.append(time.perf_counter() - begin)
        self.run_seconds = statistics.median(taken)

    def _ask(self, model: Model) -> None:
        request = pb.ModelInferRequest(model_name=model.name)
        request.inputs.add(name=model.input, datatype=model.datatype, shape=self._row.shape)
        request.raw_input_contents.append(self._row.tobytes())
        self.message: bytes = request.SerializeToString()
        self.body = framed(self.message)

    def to(self, model: Model) -> Question:
        """The same for another model with the same weights, without one more session."""
        other = copy.copy(self)
        other.model = model
        other._rest = {}
        other._ask(model)
        return other

    def plain_answer(self) -> bytes:
        """The length-prefixed message of a server that sets nothing but what it must."""
        answer = self._expected(self._row)
        response = pb.ModelInferResponse(model_name=self.model.name, model_version="1")
        response.outputs.add(name=self.model.output, datatype="FP32", shape=answer.shape)
        response.raw_output_contents.append(answer.tobytes())
        return framed(response.SerializeToString())

    def rest(self, form: str) -> RestRequest:
        """The request over REST, in a form of ``protocols.FORMS``."""
        if form not in self._rest:
            self._rest[form] = RestRequest(self.model, self._row, form)
        return self._rest[form]

    def check(self, address: str, protocol: str = GRPC) -> int:
        """Compare a server's answers with ONNX Runtime's: to the load's request, and to random ones of several rows.

        Args:
            address: host:port of the protocol.
            protocol: GRPC, or a form of REST.

        Returns:
            The bytes of DATA, or of the body, that one answer to the load's request consists of.

        Raises:
            NoFigure: an answer is wrong, or there is none.
        """
        if protocol in (GRPC, STREAM):
            return self._check_grpc(address)
        answer, size = ask(address, self.rest(protocol), self.model.output)
        self._compare(answer, self._expected(self._row))
        for count in self._sample_rows():
            rows = self.model.random_rows(self._rng, count)
            self._compare(ask_for_rows(address, self.model, rows, protocol), self._expected(rows))
        return size

    def check_answer(self, message: bytes) -> None:
        """Compare an answer over gRPC to the load's request with ONNX Runtime's.

        Raises:
            NoFigure: it is wrong.
            DecodeError, IndexError, ValueError: it cannot be read.
        """
        response = pb.ModelInferResponse.FromString(message)
        given = np.frombuffer(response.raw_output_contents[0], dtype="<f4")
        self._compare(given.reshape(list(response.outputs[0].shape)), self._expected(self._row))

    def _check_grpc(self, address: str) -> int:
        try:
            with grpc.insecure_channel(address, options=_UNLIMITED) as channel:
                message: bytes = channel.unary_unary(METHOD)(self.message, timeout=_ANSWER_SECONDS)
            self.check_answer(message)
            with triton.InferenceServerClient(address) as client:
                for count in self._sample_rows():
                    rows = self.model.random_rows(self._rng, count)
                    tensor = triton.InferInput(self.model.input, rows.shape, self.model.datatype)
                    tensor.set_data_from_numpy(rows)
                    result = client.infer(self.model.name, [tensor], client_timeout=_ANSWER_SECONDS)
                    self._compare(result.as_numpy(self.model.output), self._expected(rows))
        except (grpc.RpcError, triton.InferenceServerException, IndexError, ValueError) as error:
            raise NoFigure(f"a sampled request failed: {error}") from error
        return 5 + len(message)

    def _sample_rows(self) -> Sequence[int]:
        if self._row.nbytes > _LARGE_ROW_BYTES:
            return (1,)
        # Servers that batch take no request of more rows than a batch has.
        return tuple(rows for rows in _SAMPLE_ROWS if rows <= self.model.batch_size)

    def _expected(self, rows: Rows) -> npt.NDArray[np.float32]:
        answer: npt.NDArray[np.float32] = self._session.run(None, {self.model.input: rows})[0]
        return answer

    @staticmethod
    def _compare(given: Any, expected: npt.NDArray[np.float32]) -> None:
        if given is None:
            raise NoFigure("a sampled answer lacks the output")
        # Sums are taken in another order in a batch, hence not bit for bit.
        scale = float(np.abs(expected).max())
        if given.shape != expected.shape or not np.allclose(given, expected, rtol=1e-3, atol=1e-4 * scale):
            with np.printoptions(threshold=8):
                raise NoFigure(f"a sampled answer is wrong: {given} instead of {expected}")


def framed(message: bytes) -> bytes:
    """A message with gRPC's prefix: not compressed, and its length."""
    return b"\0" + len(message).to_bytes(4, "big") + message
