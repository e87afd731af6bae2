"""The kind of text models: folders of sentence-transformers, cross-encoders, and graphs with a tokenizer."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from toutates.backends.interface import Source
from toutates.backends.onnx.executor_sessions import executor_session_options
from toutates.backends.onnx.opening import SessionOptions, load_session
from toutates.backends.onnx.provider_names import ON_CPU
from toutates.backends.onnx.weights import GraphFiles, GraphSource
from toutates.backends.text.computing import Computing
from toutates.backends.text.encoder import Encoder, Graph, Table
from toutates.backends.text.folder import TextFolder, read_folder
from toutates.backends.text.interface import Task, TextInfo, VectorForm
from toutates.backends.text.poisoned import search_computing, search_encoder
from toutates.backends.text.queue import TextQueue
from toutates.backends.text.reading import Reader
from toutates.backends.text.servable import TextServable
from toutates.backends.text.steps import POOLING_MODES, Normalize, Pooling
from toutates.backends.text.tokenizing import NO_FRAME, WordTokenizer, load_tokenizer
from toutates.backends.text.trying import probe_texts, try_texts
from toutates.engine.budget import Keys
from toutates.engine.lengths import Buckets
from toutates.engine.padded.padding import PaddedInput, Padding
from toutates.engine.supertensor import QUICK_NS, SuperTensor
from toutates.models.config.configuration import VersionConfiguration
from toutates.models.config.describe import BackendName, model_config
from toutates.models.config.labels import Labels, read_labels
from toutates.models.config.problems import Problems
from toutates.models.config.signature_of import signature_of
from toutates.models.config.triton_fields import check_fields
from toutates.models.idle_cores import idle_cores_advice, usable_cores
from toutates.models.inspection import InspectedVersion
from toutates.models.repository import VersionFolder
from toutates.models.table import ServedVersion
from toutates.models.text_folder import is_text_folder
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import ConfigurationError, ModelLoadError
from toutates.system.placement import Placement, Turns
from toutates.system.poison import current

__all__ = ["TextKind"]

logger = logging.getLogger(__name__)

NAME: Final = "text"
#: The input with the second text of a pair.
_PAIR: Final = "text_pair"
#: Padded tokens of a batch. More do not make a CPU faster, and keep a text waiting for others.
_BATCH_TOKENS: Final = 1_024
#: Of a model whose graph returns a value for each token of the vocabulary, 120 KB a token.
_SPARSE_TOKENS: Final = 512
#: Rows of a batch of a table, which pads nothing.
_TABLE_ROWS: Final = 256
#: A table's texts are run by the worker as long as a run takes less. Other threads would compute them no sooner,
#: because most of it is Python.
_QUICK_TABLE_NS: Final = 2_000_000
#: Texts that may be under way at least: clients send 2,048 in one request.
_LEAST_TEXTS: Final = 4_096
_MEMORY_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A version that is read.

    Attributes:
        folder: what its files say, and its configuration.
        info: what it is.
        signature: its tensors.
        tokenizer, reader, computing: what computes it.
        batch_rows: texts of a batch.
        buckets: what lengths are rounded up to.
        warnings: for the operator.
        run_ns: how long a run of a short text and of a longer one took.
    """

    folder: TextFolder
    info: TextInfo
    signature: Signature
    tokenizer: WordTokenizer
    reader: Reader
    computing: Computing
    batch_rows: int
    buckets: Buckets
    warnings: tuple[str, ...]
    run_ns: int


class TextKind:
    """Versions that name the backend ``text``, or whose files are a text model's.

    Args:
        sessions: how the server makes ONNX Runtime's sessions.
        placement: where threads run.
        files: opens graphs.
    """

    def __init__(
        self, sessions: SessionOptions, placement: Placement | None = None, files: GraphFiles | None = None
    ) -> None:
        self._sessions = sessions
        self._files = files or GraphFiles()
        self._placement = placement or Placement()
        self._intra_op_turns = Turns(self._placement.intra_op)

    @property
    def backends(self) -> Sequence[str]:
        """See ``Kind``."""
        return (NAME,)

    def claims(self, version: VersionFolder) -> bool:
        """See ``Kind``. A config.pbtxt that names no backend is that of the graph alone."""
        try:
            return version.triton is None and is_text_folder(os.listdir(version.path))
        except OSError:
            return False

    def load(self, model: str, configuration: VersionConfiguration) -> ServedVersion:
        """See ``Kind``."""
        settings, number = configuration.settings, configuration.folder.number
        loaded = self._open(model, configuration)
        for warning in loaded.warnings:
            logger.warning("model '%s' version %d: %s", model, number, warning)
        if configuration.notice:
            logger.info("model '%s' version %d: %s", model, number, configuration.notice)
        labels = dict(read_labels(settings, loaded.signature, configuration.folder.model_dir, configuration.source))
        if loaded.info.labels and 0 not in labels:
            names = [name.replace("\n", " ") for name in loaded.info.labels]
            labels[0] = Labels("\n".join(names).encode())
        triton = configuration.folder.triton
        intra_threads = settings.session.intra_threads or self._sessions.intra_threads
        advice = ""
        if loaded.computing.on_cpu:
            cores = usable_cores(self._placement)
            advice = idle_cores_advice(loaded.run_ns, settings, intra_threads, cores, configuration.source.name)
        if advice:
            logger.info("model '%s' version %d: %s", model, number, advice)
        rows, pads = loaded.batch_rows, loaded.computing.pads
        supertensor = SuperTensor(
            model,
            loaded.signature,
            batch_size=rows,
            # Clients send 2,048 texts in one request.
            capacity=-(-loaded.info.max_texts // rows),
            capacity_bytes=settings.capacity_bytes or _MEMORY_BYTES,
            keys=Keys(configuration.source.name, "'capacity'", "'capacity_bytes'"),
            padding=Padding({0: PaddedInput(0)}, buckets=loaded.buckets, most_elements=loaded.info.max_batch_tokens),
            make_queue=partial(TextQueue, signature=loaded.signature, pads=pads),
            quick_ns=QUICK_NS if pads else _QUICK_TABLE_NS,
        )
        servable = TextServable(
            number,
            loaded.folder,
            loaded.info,
            loaded.tokenizer,
            loaded.reader,
            loaded.computing,
            supertensor,
            settings.num_executors,
            pool_threads=intra_threads - 1 if loaded.folder.graph is not None else 0,
        )
        return ServedVersion(
            model=model,
            number=number,
            description=model_config(
                model,
                loaded.signature,
                settings,
                version_policy=triton.version_policy if triton is not None else None,
                given=configuration.given,
                backend=_described(loaded.folder),
            ),
            servable=servable,
            labels=labels,
            advice=advice,
            takes_parameters=lambda: True,
            takes_turns=lambda: True,
        )

    def inspect(self, model: str, configuration: VersionConfiguration, *, try_warmup: bool = False) -> InspectedVersion:
        """See ``Kind``. It is computed once either way, because only that tells whether it can be."""
        loaded = self._open(model, configuration, on_cpu=True)
        return InspectedVersion.of(model, configuration, loaded.signature, _described(loaded.folder), loaded.warnings)

    # --- reading a version -------------------------------------------------------------------------------------------

    def _open(self, model: str, configuration: VersionConfiguration, *, on_cpu: bool = False) -> _Loaded:
        """Read a version, and try it with a text: what its files do not say of it, a run does.

        Raises:
            ConfigurationError: its configuration or its parameters cannot be used.
            ModelLoadError: its files cannot.
        """
        settings, version = configuration.settings, configuration.folder
        warnings = _check_settings(configuration)
        source = Source(
            model, version.number, version.path, version.path,
            configuration=configuration.source, parameters=settings.parameters,
        )  # fmt: skip
        folder = _with_parameters(read_folder(version.path, settings.model_filename), source)
        in_module = (folder.transformer / "tokenizer.json").exists()
        tokenizer = load_tokenizer(folder.transformer if in_module else folder.path)
        encoder = self._encoder(model, configuration, folder, on_cpu=on_cpu)
        poison = current()
        if poison is not None:
            search_encoder(encoder, model, poison)
        # A graph fails on an id that it has no vector for, and with it a batch of others' texts.
        vocabulary = min(tokenizer.vocabulary, encoder.tokens or folder.vocabulary or tokenizer.vocabulary)
        skip_ids = [found for word in folder.skip_tokens if (found := tokenizer.id_of(word)) is not None]
        computing = Computing(folder, encoder, skip_ids)
        if poison is not None:
            search_computing(computing, model, poison)
        accepts_ids = source.text("token_ids", "own", among=_TOKEN_IDS) == "accept"
        frame = None if accepts_ids else tokenizer.frame if folder.special else NO_FRAME
        reader = Reader(tokenizer, vocabulary, lower=folder.lower, takes_empty=not encoder.pads, frame=frame)
        limit = source.integer("max_tokens", folder.max_tokens, 1, folder.max_tokens)
        default_tokens = _SPARSE_TOKENS if folder.form is VectorForm.SPARSE else _BATCH_TOKENS
        batch_tokens = source.integer("max_batch_tokens", default_tokens, 1, 2**24)
        info = TextInfo(
            task=folder.task,
            form=folder.form,
            max_tokens=limit,
            dimensions=1,
            vocabulary=vocabulary,
            pooling=folder.pooling,
            normalized=folder.normalizes,
            similarity=folder.similarity,
            prompts=folder.prompts,
            default_prompt=folder.default_prompt,
            labels=folder.labels,
            truncate=source.flag("truncate", True),
            datatype=encoder.datatype,
            model_type=folder.model_type,
            max_batch_tokens=batch_tokens,
            max_texts=max(settings.batch_size * settings.capacity, _LEAST_TEXTS),
        )
        if source.left_over:
            raise source.refused(source.left_over[0], "is no parameter of text models", f"one of {', '.join(_KEYS)}")
        dimensions, run_ns = try_texts(folder, reader, computing, info)
        rows = probe_texts(folder, reader, computing, info, run_ns, settings.joined_by)
        if rows.warning:
            warnings.append(rows.warning)
        info = replace(info, dimensions=dimensions)
        if info.task is not Task.EMBED and dimensions != len(info.labels):
            raise ModelLoadError(
                f"the graph returns {dimensions} scores, and config.json has {len(info.labels)} labels; copy the files "
                "of one and the same model"
            )
        return _Loaded(
            folder,
            info,
            _signature(info, configuration),
            tokenizer,
            reader,
            computing,
            # A text of a table costs the same whatever it shares a batch with.
            (settings.batch_size if rows.joins else 1) if encoder.pads else max(settings.batch_size, _TABLE_ROWS),
            Buckets(sorted({min(one, limit) for one in Buckets().up_to(limit)}) if encoder.pads else [limit]),
            tuple(warnings),
            run_ns,
        )

    def _encoder(self, model: str, configuration: VersionConfiguration, folder: TextFolder, *, on_cpu: bool) -> Encoder:
        if folder.graph is None:
            return Table(folder.transformer)
        settings = configuration.settings
        options = [
            executor_session_options(self._sessions, settings, number, model=model, source=configuration.source)
            for number in range(settings.num_executors)
        ]
        if any(own.providers != options[0].providers for own in options):
            raise ConfigurationError(
                "a text model has one session, which runs on one device",
                source=configuration.source,
                key="devices",
                remedy="name one device",
            )
        # Lengths differ from run to run. An arena would keep what the largest run has needed, for each of its shapes.
        chosen = replace(
            options[0],
            providers=(ON_CPU,) if on_cpu else options[0].providers,
            memory_arena=False,
            memory_pattern=False,
            intra_op_cpus=self._intra_op_turns.take(options[0].intra_threads - 1),
        )

        def make(source: GraphSource) -> Graph:
            return Graph(load_session(source.path, chosen, weights=source.weights), folder)

        version = configuration.folder
        return self._files.read(version, folder.graph, f"model '{model}' version {version.number}", make)


def _signature(info: TextInfo, configuration: VersionConfiguration) -> Signature:
    """The tensors of a text model.

    Raises:
        ConfigurationError: the configuration asks for what does not go with text models.
    """
    settings, source, declared = configuration.settings, configuration.source, configuration.declared
    signature = signature_of(*_tensors(info), settings, source=source, declared=declared)
    if settings.response_cache:
        raise ConfigurationError(
            "does not go with text models: their APIs do not look there",
            source=source,
            key="response_cache",
            remedy="remove it",
        )
    if not signature.batched:
        raise ConfigurationError(
            "text models take any number of texts at once",
            source=source,
            key="max_batch_size" if declared is not None else "batching",
            remedy="remove it",
        )
    # Rows of requests with and without a pair share batches all the same, which is not so with a graph's inputs.
    if info.task is Task.CLASSIFY and _PAIR not in settings.required_inputs:
        inputs = [replace(tensor, optional=tensor.name == _PAIR) for tensor in signature.inputs]
        signature = replace(signature, inputs=tuple(inputs))
    return signature


_KEYS: Final = ("max_tokens", "max_batch_tokens", "truncate", "default_prompt", "pooling", "normalize", "token_ids")
#: Which ids of tokens are taken in place of a text: those with the frame of the model's own tokenizer, or any.
_TOKEN_IDS: Final = ("own", "accept")


def _with_parameters(folder: TextFolder, source: Source) -> TextFolder:
    """The folder, as the configuration's parameters change it."""
    prompt = source.text("default_prompt", folder.default_prompt)
    if prompt and prompt not in folder.prompts:
        known = ", ".join(folder.prompts) or "none"
        raise source.refused("default_prompt", "is not among the model's prompts", f"it has: {known}")
    modes = tuple(filter(None, source.text("pooling").split("+")))
    normalize = source.flag("normalize", folder.normalizes)
    steps = folder.steps
    if modes or normalize is not folder.normalizes:
        if folder.task is not Task.EMBED or folder.declares_pooling:
            key = "pooling" if modes else "normalize"
            raise source.refused(key, "is said by modules.json already", "remove it, or mend modules.json")
        for mode in modes:
            if mode not in POOLING_MODES:
                raise source.refused("pooling", f"has no mode {mode!r}", f"join {', '.join(POOLING_MODES)} by +")
        steps = (Pooling(modes),) if modes else tuple(one for one in steps if isinstance(one, Pooling))
        if normalize:
            steps = (*steps, Normalize())
    return replace(folder, steps=steps, default_prompt=prompt)


def _check_settings(configuration: VersionConfiguration) -> list[str]:
    """Refuse what text models do not have; returns warnings of what is passed over."""
    settings, source = configuration.settings, configuration.source
    problems = Problems(source)
    passed = check_fields(configuration.given, problems) if configuration.given is not None else []
    if settings.allocator != "cpu":
        problems.add("allocator", "is for ONNX models only", settings.allocator, "write allocator: cpu")
    if settings.latency_target_ms:
        key = "latency_target_ms"
        problems.add(key, "is not for text models: what runs of texts take depends on their lengths", None, "remove it")
    if settings.profiling is not None:
        problems.add("profiling", "is for ONNX models only", None, "remove it")
    if settings.policies.are_set:
        remedy = "remove priority_levels, priority_queues and timeouts of the queue"
        problems.add("priority_levels", "texts have no priorities, and no timeouts in the queue", None, remedy)
    if settings.preserve_ordering:
        problems.add("preserve_ordering", "vectors are answered as they are there", None, "remove it")
    problems.raise_all()
    if settings.warmup:
        passed.append("warm-up samples (text models are warmed up with texts of their own)")
    if settings.max_queue_size:
        passed.append("max_queue_size (capacity bounds the texts that are under way)")
    if settings.max_queue_delay_us:
        passed.append("delays of batches (texts never wait while an executor is idle)")
    if not passed:
        return []
    return [f"'{source}': passed over, because text models do not act on it: {'; '.join(passed)}"]


def _tensors(info: TextInfo) -> tuple[list[TensorSpec], list[TensorSpec]]:
    text, number, count = BY_NAME["BYTES"], BY_NAME["FP32"], BY_NAME["INT32"]
    inputs = [TensorSpec("text", text, (-1, 1))]
    if info.task is not Task.EMBED:
        inputs.append(TensorSpec(_PAIR, text, (-1, 1)))
        return inputs, [TensorSpec("scores", number, (-1, info.dimensions))]
    if info.form is VectorForm.MULTI:
        return inputs, [
            TensorSpec("embedding", number, (-1, -1, info.dimensions)), TensorSpec("tokens", count, (-1,))
        ]  # fmt: skip
    return inputs, [TensorSpec("embedding", number, (-1, info.dimensions))]


def _described(folder: TextFolder) -> BackendName:
    return BackendName(NAME, filename=str(folder.graph.relative_to(folder.path)) if folder.graph is not None else "")
