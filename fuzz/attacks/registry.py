"""All attacks by name, in the order of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuzz.attacks import (
    bombs,
    control_floods,
    dear_answers,
    dear_contents,
    floods_of_connections,
    header_bombs,
    http_floods,
    long_turns,
    open_calls,
    rapid_reset,
    slow_peers,
)
from fuzz.attacks.attack import Attack

__all__ = ["ATTACKS"]

_ALL: Final[tuple[type[Attack], ...]] = (
    rapid_reset.RapidReset,
    rapid_reset.MadeYouReset,
    rapid_reset.ResetFlood,
    header_bombs.ContinuationFlood,
    header_bombs.HpackBomb,
    header_bombs.HugeHeaders,
    header_bombs.EmptyHeaderNames,
    header_bombs.TableResizes,
    control_floods.PingFlood,
    control_floods.SettingsFlood,
    control_floods.SettingsOverStreams,
    control_floods.EmptyData,
    control_floods.PriorityFlood,
    control_floods.UnknownFrames,
    control_floods.WindowUpdates,
    control_floods.WindowDribble,
    slow_peers.ClosedWindow,
    slow_peers.TinyWindow,
    slow_peers.DeafReader,
    slow_peers.SilentConnections,
    slow_peers.SlowPreface,
    slow_peers.SlowHeaders,
    slow_peers.SlowBody,
    slow_peers.OpenStreams,
    open_calls.WatchFlood,
    open_calls.KeptReads,
    slow_peers.UnfinishedUploads,
    slow_peers.Vanished,
    bombs.GzipBomb,
    bombs.DeflateBomb,
    bombs.GzipFlood,
    bombs.NestedGroups,
    bombs.EmptyContents,
    bombs.ManyDimensions,
    dear_answers.StatisticsFlood,
    dear_answers.ReflectionFlood,
    dear_contents.SurplusStrings,
    dear_contents.ManyStrings,
    dear_contents.TypedStrings,
    dear_contents.UnpackedNumbers,
    dear_contents.Classes,
    bombs.PlanPollution,
    bombs.ShapePollution,
    long_turns.DearCalls,
    long_turns.BulkThenResets,
    long_turns.ManyEnds,
    long_turns.ExpiringCalls,
    long_turns.ManyFields,
    long_turns.HugeUpload,
    floods_of_connections.HoldConnections,
    floods_of_connections.ConnectionChurn,
    floods_of_connections.PortScan,
    http_floods.PipelinedRequests,
    http_floods.PipelinedProbes,
    http_floods.RequestsLeftBehind,
)

#: An instance of each, made without cost: what an attack sends, it prepares when it first strikes.
ATTACKS: Final[Mapping[str, Attack]] = {attack.name: attack() for attack in _ALL}
