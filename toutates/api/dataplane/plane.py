"""The data plane: a function for every RPC but inference, from request message to response message.

A transport parses a request, calls the function, and sends the response. It turns a ``RequestError`` into a status of
its own. The data plane knows no call, worker or status, and does not block.

Plain functions run on the thread of the worker that has the request. Async functions run on the main thread, in Trio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from toutates.api.dataplane.beside import ANSWERS, MANY, Beside
from toutates.api.dataplane.everywhere import Everywhere, LocalCalls, all_statistics, whole_index
from toutates.api.dataplane.log_settings import log_settings
from toutates.api.dataplane.readiness import Readiness
from toutates.api.dataplane.repository_control import load_model, unload_model
from toutates.api.dataplane.repository_index import repository_index
from toutates.api.dataplane.statistics import model_statistics
from toutates.api.dataplane.trace_setting import trace_setting
from toutates.api.dataplane.traffic import NOTE, TrafficRequest, as_note, change_of, traffic_document
from toutates.infer.regions import Regions
from toutates.infer.tracing.settings import TraceSettings
from toutates.models.config.describe import model_metadata
from toutates.models.demand import NOT_LOADED, Loader
from toutates.models.table import ModelTable
from toutates.protocol import grpc_service_pb2 as pb
from toutates.repositories.control.model_control import ModelControl
from toutates.repositories.control.traffic import TrafficControl
from toutates.system.errors import ModelNotReady, NotLoaded, Unavailable, UnknownModel, anew
from toutates.system.logs.control import LogControl

__all__ = ["EXTENSIONS", "DataPlane", "ServerIdentity"]

#: Extensions that ServerMetadata lists, by Triton's names. perf_analyzer reads statistics only where they are listed.
EXTENSIONS: Final = (
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
    "trace",
)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The name and the version of the server, for ServerMetadata."""

    name: str
    version: str


class DataPlane:
    """Answers every RPC but inference. Functions raise RequestError for what they refuse, with Triton's text.

    Args:
        identity: the server's name and version.
        get_table: returns the model table as it is now.
        readiness: the worker's view of the server's readiness.
        control: loads and unloads models.
        log_control: has the levels of the log.
        trace_settings: the trace settings of the server.
        everywhere: has calls carried out in all processes of the server; None where there is but one.
        regions: of shared memory, which clients register; None for a server that has none.
        traffic: has the rules of aliases and traffic; None where nothing can change them.
        loader: loads models on demand; None where none are.

    Attributes:
        get_table: returns the model table. Most answers stay the same as long as it returns the same table.
        readiness: the worker's view of the server's readiness.
        regions: as given; ``shared_memory`` has the functions that use them.
    """

    def __init__(
        self,
        identity: ServerIdentity,
        get_table: Callable[[], ModelTable],
        readiness: Readiness,
        control: ModelControl,
        log_control: LogControl,
        trace_settings: TraceSettings,
        everywhere: Everywhere | None = None,
        regions: Regions | None = None,
        traffic: TrafficControl | None = None,
        loader: Loader | None = None,
    ) -> None:
        self._loader = loader
        self.get_table = get_table
        self.readiness = readiness
        self.regions = regions or Regions()
        self._identity = identity
        self._control = control
        self._log_control = log_control
        self._trace_settings = trace_settings
        self._everywhere = everywhere
        self._traffic = traffic
        self._statistics_beside = Beside(self.model_statistics, get_table)
        self._index_beside = Beside(self.repository_index, get_table)

    # --- the server --------------------------------------------------------------------------------------------------

    def server_live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        """Answer ServerLive."""
        self._refuse_when_exiting()
        return pb.ServerLiveResponse(live=True)

    def server_ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        """Answer ServerReady."""
        self._refuse_when_exiting()
        return pb.ServerReadyResponse(ready=self.readiness.serving)

    def server_metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        """Answer ServerMetadata."""
        identity = self._identity
        extensions = (*EXTENSIONS, *self.regions.extensions)
        return pb.ServerMetadataResponse(name=identity.name, version=identity.version, extensions=extensions)

    def log_settings(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        """Answer LogSettings: make the changes that it asks for, and return all settings."""
        return log_settings(self._log_control, request)

    def trace_setting(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        """Answer TraceSetting: make the changes that it asks for, and return the settings."""
        return trace_setting(self.get_table(), self._trace_settings, request)

    def _refuse_when_exiting(self) -> None:
        if self.readiness.exiting:
            raise Unavailable("Server exiting")

    # --- models ------------------------------------------------------------------------------------------------------

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """Answer ModelReady. An unknown model is no error but not ready: clients of Triton rely on that."""
        try:
            self.refuse_unless_model_ready(request)
        except NotLoaded:
            raise  # one version of it is asked for: it is loaded, and then known
        except (UnknownModel, ModelNotReady):
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    def refuse_unless_model_ready(self, request: pb.ModelReadyRequest) -> None:
        """Say why a model is not ready.

        A model that is loaded on demand is ready before it is loaded: clients ask before they send a request, and their
        request would be answered. But for one version of it somebody has to look.

        Raises:
            NotLoaded: it has to be loaded, to know whether it has the version.
            RequestError: it is not.
        """
        try:
            version = self.get_table().find(request.name, request.version)
        except NotLoaded as missing:
            if request.version:
                raise
            failure = self._loader.failure_of(missing.model) if self._loader is not None else None
            if failure is not None:
                raise anew(failure) from None
            return
        if not version.has_code():
            raise ModelNotReady(
                f"Request for unknown model: '{request.name}' version {version.number} is not at ready state"
            )

    def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """Answer ModelMetadata; without a version it lists all versions that are loaded."""
        table = self.get_table()
        version = table.find(request.name, request.version)
        own = table.get(version.model)
        loaded = [served.number for served in own.served()] if own is not None else []
        # Of a name that stands for a version, that one.
        is_one = bool(request.version) or (version.model != request.name and version.number not in loaded[-1:])
        shown = [version.number] if is_one else loaded
        return model_metadata(version.model, shown, version.signature, version.config)

    def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        """Answer ModelConfig."""
        return pb.ModelConfigResponse(config=self.get_table().find(request.name, request.version).config)

    def model_statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """Answer ModelStatistics."""
        return model_statistics(self.get_table(), request)

    @property
    def has_many(self) -> bool:
        """Whether answers about all models are to be awaited, because they take long to make."""
        return len(self.get_table()) > MANY

    async def statistics_beside(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """Answer ModelStatistics of very many models, in a thread."""
        key = request.name, request.version if request.name else ""
        response: pb.ModelStatisticsResponse = await self._statistics_beside.get(request, key)
        return response

    async def index_beside(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """The same for RepositoryIndex."""
        response: pb.RepositoryIndexResponse = await self._index_beside.get(
            request, (request.repository_name, request.ready)
        )
        return response

    # --- the repository ----------------------------------------------------------------------------------------------

    @property
    def loads_on_request(self) -> bool:
        """Whether models are loaded and unloaded by request (explicit model control)."""
        return self._control.explicit

    def refuse_unless_loads_on_request(self) -> None:
        """Refuse a load or an unload unless ``loads_on_request`` is true.

        ``load`` and ``unload`` do so too. A transport calls this first, on the worker's thread, so that such requests
        do not get to the main thread.
        """
        if not self.loads_on_request:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    def repository_index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """Answer RepositoryIndex from the model table. It has all models, unless models are loaded by request."""
        return repository_index(self.get_table(), request)

    async def repository_index_on_request(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """Answer RepositoryIndex if models are loaded by request: those that were never loaded are listed too."""
        if self._everywhere is not None:
            return whole_index(await self._everywhere.ask("RepositoryIndex", request, pb.RepositoryIndexResponse))
        if not self.loads_on_request or request.repository_name or request.ready:
            return repository_index(self.get_table(), request)
        names = await self._control.names()
        if self._loader is not None:
            # Of any number of models: beside this thread, which loads others meanwhile.
            shown = (names, NOT_LOADED, self._loader.is_loading)
            return await ANSWERS.run(repository_index, self.get_table(), request, *shown)
        if self.has_many:
            return await ANSWERS.run(repository_index, self.get_table(), request, names)
        return repository_index(self.get_table(), request, names)

    async def load(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Answer RepositoryModelLoad once the model is served."""
        self.refuse_unless_loads_on_request()
        if self._everywhere is not None:
            about = f"model {request.model_name.strip()}"
            whole, response = bool(request.parameters), pb.RepositoryModelLoadResponse
            return await self._everywhere.change("RepositoryModelLoad", request, response, about, whole=whole)
        await load_model(self._control, request)
        return pb.RepositoryModelLoadResponse()

    async def unload(self, request: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        """Answer RepositoryModelUnload once the model gets no more requests."""
        self.refuse_unless_loads_on_request()
        if self._everywhere is not None:
            about = f"model {request.model_name.strip()}"
            return await self._everywhere.change(
                "RepositoryModelUnload", request, pb.RepositoryModelUnloadResponse, about
            )
        await unload_model(self._control, request)
        return pb.RepositoryModelUnloadResponse()

    # --- aliases and traffic -----------------------------------------------------------------------------------------

    async def traffic(self, request: TrafficRequest) -> dict[str, Any]:
        """Answer with the rules of aliases and traffic, after the change that is asked for."""
        if request.change is not None:
            self.refuse_unless_loads_on_request()
            control = self._traffic
            if control is None:
                raise Unavailable("aliases and traffic cannot be changed")
            await self.note_everywhere(NOTE, as_note(request.change), lambda said: change_of(control, said))
        return traffic_document(self.get_table())

    # --- where there are several processes ---------------------------------------------------------------------------

    @property
    def asks_others(self) -> bool:
        """Whether what follows, and what loads and lists models, is to be called in place of the plain functions."""
        return self._everywhere is not None

    async def statistics_of_all(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """Answer ModelStatistics with the sum of all processes."""
        assert self._everywhere is not None
        parts = await self._everywhere.ask("ModelStatistics", request, pb.ModelStatisticsResponse)
        return all_statistics([part for _, part in parts])

    async def log_settings_of_all(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        """Answer LogSettings for all processes."""
        assert self._everywhere is not None
        if not request.settings:
            return self.log_settings(request)
        return await self._everywhere.change("LogSettings", request, pb.LogSettingsResponse, "log", whole=False)

    async def trace_setting_of_all(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        """Answer TraceSetting for all processes."""
        assert self._everywhere is not None
        if not request.settings:
            return self.trace_setting(request)
        return await self._everywhere.change("TraceSetting", request, pb.TraceSettingResponse, "traces", whole=False)

    async def note_everywhere(
        self,
        call: str,
        said: pb.RepositoryModelLoadRequest,
        note: Callable[[pb.RepositoryModelLoadRequest], pb.RepositoryModelLoadResponse],
    ) -> None:
        """Have something noted of a model, in all processes.

        Args:
            call: by which ``local_calls`` know what notes it.
            said: what it is, of which model.
            note: takes it in this process, where it is the only one.
        """
        if self._everywhere is None:
            note(said)
        else:
            about = f"{call} {said.model_name}"
            await self._everywhere.change(call, said, pb.RepositoryModelLoadResponse, about)

    def local_calls(self, process: int, others: Mapping[str, Any] = MappingProxyType({})) -> LocalCalls:
        """What carries out in this process what another one was asked for; of a plane without ``everywhere``.

        Args:
            process: its number.
            others: other calls, by name: the class of the request, and what answers it.
        """
        return LocalCalls(
            process,
            {
                "ModelStatistics": (pb.ModelStatisticsRequest, self.model_statistics),
                "RepositoryIndex": (pb.RepositoryIndexRequest, self.repository_index_on_request),
                "RepositoryModelLoad": (pb.RepositoryModelLoadRequest, self.load),
                "RepositoryModelUnload": (pb.RepositoryModelUnloadRequest, self.unload),
                "LogSettings": (pb.LogSettingsRequest, self.log_settings),
                "TraceSetting": (pb.TraceSettingRequest, self.trace_setting),
                **others,
            },
        )
