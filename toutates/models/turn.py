"""One change of one model: what is loaded, what replaces what in the table, and what is to end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from toutates.models.current_table import CurrentTable, latest
from toutates.models.load_counters import LoadCounters
from toutates.models.repository import ModelFolder
from toutates.models.running import Outcome, RunningVersions, identity_of
from toutates.models.table import UNLOADED, ModelEntry, ModelState, ServedVersion, VersionEntry
from toutates.protocol.model_config_pb2 import ModelVersionPolicy
from toutates.system.client_text import without_paths
from toutates.system.errors import ModelLoadError, NotPolled, PartlyLoaded

__all__ = ["ModelTurn", "all_at"]

logger = logging.getLogger(__name__)


class ModelTurn:
    """The right to change one model; see ``ModelManager.turn``.

    Attributes:
        name: of the model.
        retiring: versions that have left the table, and are to end after the turn.
        on_ended: to be called when these have ended.
    """

    def __init__(
        self,
        name: str,
        table: CurrentTable,
        running: RunningVersions,
        counters: LoadCounters,
        note_findings: Callable[[ModelFolder], None],
    ) -> None:
        self.retiring: list[ServedVersion] = []
        self.on_ended: Callable[[], None] = lambda: None
        self.name = name
        self._table = table
        self._running = running
        self._counters = counters
        self._note_findings = note_findings
        #: of the versions that are being loaded; None without a config.pbtxt
        self._policy: ModelVersionPolicy | None = None

    async def load(self, folder: ModelFolder, *, overridden: bool = False, all_or_none: bool = True) -> None:
        """Serve the model as ``folder`` has it. Versions that are served already, and would come out the same, stay.

        Returns once the table has been replaced; what was served before may still have requests then.

        Args:
            folder: with all versions that are to be served, their files at hand until this returns.
            overridden: whether the configuration that the folder has holds even beside a config.yaml.
            all_or_none: whether all of it is to be served or nothing of it. A model of which something is served
                already is replaced only by a whole one in any case.

        Raises:
            ModelLoadError: what is wrong, a clause per version. What was served before is served still.
            NotPolled: likewise, before any version was tried.
            PartlyLoaded: likewise, where the other versions are served now.
        """
        before = self._look_at(folder)
        identities = {version.number: identity_of(version, overridden) for version in folder.versions}
        kept = {
            number: replace(before.versions[number], reason="")
            for number, identity in identities.items()
            if number in before.versions and _is_the_same(before.versions[number], identity)
        }
        self._policy = next((one.triton.version_policy for one in folder.versions if one.triton is not None), None)
        new = [version for version in folder.versions if version.number not in kept]
        if new:
            loading = {one.number: VersionEntry(one.number, ModelState.LOADING) for one in new}
            self._table.enter(replace(_after(before, loading | _served(before)), retried=before.fails))
        loaded: dict[int, VersionEntry] = {}
        try:
            loaded = await self._running.load(self.name, new, overridden=overridden)
        finally:
            if len(loaded) < len(new):  # cancelled, or a bug of ours
                self._table.enter(before)
        self._serve(before, kept, loaded, all_or_none=all_or_none)

    def enter(self, folder: ModelFolder, outcome: Outcome) -> None:
        """Serve the model as ``folder`` has it, with the one version that was loaded already.

        Args:
            folder: with this version alone, or with a problem.
            outcome: of its load.

        Raises:
            ModelLoadError, NotPolled, PartlyLoaded: as ``load``, if some of it may be served without the rest.
        """
        before = self._look_at(folder)
        [version] = folder.versions
        loaded = {version.number: self._running.enter(self.name, version, outcome, overridden=False)}
        self._serve(before, {}, loaded, all_or_none=False)

    def _look_at(self, folder: ModelFolder) -> ModelEntry:
        """Tell what was found in the folder; returns what is known of the model by now."""
        self._note_findings(folder)
        before = self._table.get(self.name) or ModelEntry(self.name)
        if folder.problem:
            self._refuse(folder, before)
        return before

    def _serve(
        self,
        before: ModelEntry,
        kept: Mapping[int, VersionEntry],
        loaded: Mapping[int, VersionEntry],
        *,
        all_or_none: bool,
    ) -> None:
        """Serve what was loaded, and say what could not be."""
        failed = {number: entry for number, entry in loaded.items() if entry.served is None}
        # What others are missing for, or do not fit, is in the table even so: it is served once they are there.
        unbound = {number: self._unbound(entry) for number, entry in loaded.items() if self._problem_of(entry)}
        if all_or_none and before.served():
            failed |= unbound
            unbound = {}
        if failed and (all_or_none or before.served()):
            self._keep(before, loaded, failed)
        else:
            self._replace(before, kept, loaded, failed)
        unbound |= {number: self._unbound(entry) for number, entry in kept.items() if self._problem_of(entry)}
        served = [entry.served for entry in (*kept.values(), *loaded.values()) if entry.served is not None]
        missing = self._table.missing(served)
        if unbound and not failed:
            raise _with(missing, PartlyLoaded(_said(unbound)))
        if failed:
            text = _said(failed)
            is_partly_served = not (all_or_none or before.served()) and len(failed) < len(loaded)
            raise _with(missing, (PartlyLoaded if is_partly_served else ModelLoadError)(text))

    def _problem_of(self, entry: VersionEntry) -> str:
        return self._table.problem_of(entry.served) if entry.served is not None else ""

    def _unbound(self, entry: VersionEntry) -> VersionEntry:
        reason = self._problem_of(entry)
        fields = {"model": self.name, "version": entry.number, "reason": reason}
        logger.warning("model '%s' version %d cannot answer: %s", *fields.values(), extra=fields)
        return VersionEntry(entry.number, ModelState.UNAVAILABLE, f"Invalid argument: {reason}")

    def _refuse(self, folder: ModelFolder, before: ModelEntry) -> None:
        """Nothing of the model is known by its number: it has a problem as a whole."""
        problem = without_paths(folder.problem, folder.path)
        self._table.enter(before if before.served() else ModelEntry(self.name, problem=problem))
        if folder.has_no_version:
            raise ModelLoadError(
                f"at least one version must be available under the version policy of model '{self.name}': {problem}"
            )
        raise NotPolled(problem)

    def _keep(self, before: ModelEntry, loaded: Mapping[int, VersionEntry], failed: Mapping[int, VersionEntry]) -> None:
        """Go on serving what was served before; versions that could not be replaced have the reason."""
        self.retiring += [entry.served for entry in loaded.values() if entry.served is not None]
        still = {
            number: replace(entry, reason=failed[number].reason if number in failed else entry.reason)
            for number, entry in _served(before).items()
        }
        self._table.enter(_after(before, {**failed, **still}))

    def _replace(
        self,
        before: ModelEntry,
        kept: Mapping[int, VersionEntry],
        loaded: Mapping[int, VersionEntry],
        failed: Mapping[int, VersionEntry],
    ) -> None:
        """Serve what was loaded, in place of what was served before and is not kept."""
        for entry in kept.values():
            if entry.served is not None and self._policy is not None:
                entry.served.note_policy(self._policy)
        self._table.enter(_after(before, {**kept, **loaded}))
        gone = {number: served for number, served in _served(before).items() if number not in kept}
        self.retiring += [entry.served for entry in gone.values() if entry.served is not None]
        self._counters.unloads += len(gone)
        self._counters.reloads += len(gone.keys() & loaded.keys() - failed.keys())

    def unload(self, *, forget: bool = False) -> None:
        """Stop serving the model. Its new requests are refused from now on, those that are queued are answered.

        A model that is not known is no error.

        Args:
            forget: whether it is in no repository any more, so that the table is not to list it as unloaded.
        """
        before = self._table.get(self.name)
        if before is None:
            return
        gone = before.served()
        self.retiring += gone
        self._counters.unloads += len(gone)
        if gone:
            self._table.enter(all_at(before, ModelState.UNLOADING))
            # It must not hold the versions themselves, which are to be freed before.
            self.on_ended = lambda: self._end_unloading(forget)
        else:
            self._end_unloading(forget)

    def _end_unloading(self, forget: bool) -> None:
        model = self._table.get(self.name)
        assert model is not None
        if forget:
            self._table.remove(self.name)
        else:
            self._table.enter(all_at(model, ModelState.UNAVAILABLE, UNLOADED))


def _with(missing: tuple[str, ...], error: ModelLoadError) -> ModelLoadError:
    error.missing = missing
    return error


def _said(failed: Mapping[int, VersionEntry]) -> str:
    return "\n".join(f"version {n} is at UNAVAILABLE state: {entry.reason};" for n, entry in failed.items())


def all_at(model: ModelEntry, state: ModelState, reason: str = "") -> ModelEntry:
    """A model that serves nothing, with all of its versions in one state."""
    return ModelEntry(model.name, {n: VersionEntry(n, state, reason) for n in model.versions}, gone=model.gone)


def _after(before: ModelEntry, versions: Mapping[int, VersionEntry]) -> ModelEntry:
    """A model with these versions; those that were served before are remembered, so that callers are told of them."""
    gone = {number for number, one in before.versions.items() if one.served or one.reason == UNLOADED}
    return ModelEntry(before.name, dict(sorted(versions.items())), gone=latest({*before.gone, *gone} - versions.keys()))


def _served(model: ModelEntry) -> dict[int, VersionEntry]:
    """The entries of versions that are served."""
    return {number: entry for number, entry in model.versions.items() if entry.served is not None}


def _is_the_same(entry: VersionEntry, identity: object) -> bool:
    return entry.served is not None and identity is not None and entry.identity == identity
