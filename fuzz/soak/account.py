"""The account of a soak: what became of every request, and whether the server is as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression
from typing import Final

from bench.process import open_files

__all__ = ["Account", "Entry", "Sample", "take_sample"]

#: Anonymous memory at the end may be this much above what it was once each attack had been made: a share of it, and
#: what allocators move.
MOST_GROWTH: Final = 0.10
MOST_GROWTH_MIB: Final = 24.0
#: The last of so many parts of the samples are late ones.
LATE_SHARE: Final = 3
#: Samples that a trend is made of, at least.
LEAST_TREND: Final = 3
#: Faults shown of each sort of client.
_SHOWN_FAULTS: Final = 5


@dataclass(slots=True)
class Entry:
    """What became of the requests of one sort of client.

    Attributes:
        sent: requests.
        right: answered with what ONNX Runtime makes of them.
        refused: ended with a status that this request may have, by its name.
        given_up: by their client: cancelled, out of time or dropped with the connection, where no status says so.
        faults: wrong answers and wrong statuses, in words.
    """

    sent: int = 0
    right: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    given_up: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Requests that nothing was heard of."""
        return self.sent - self.right - self.refused.total() - self.given_up - len(self.faults)

    def add(self, other: Entry) -> None:
        """Add another entry to this one."""
        self.sent += other.sent
        self.right += other.right
        self.refused += other.refused
        self.given_up += other.given_up
        self.faults += other.faults


@dataclass(frozen=True, slots=True)
class Sample:
    """The server while nobody is there.

    Attributes:
        seconds: since the soak began.
        anonymous_mib: resident memory but for that of files.
    """

    seconds: float
    anonymous_mib: float
    files: int
    threads: int


def take_sample(pid: int, seconds: float) -> Sample:
    """Look at a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return Sample(
        seconds,
        int(fields["RssAnon"].split()[0]) / 1024,
        open_files(pid),
        int(fields["Threads"]),
    )


@dataclass(slots=True)
class Account:
    """See the module.

    Attributes:
        entries: by sort of client.
        attacks: connections that attackers made, by how they ended.
        samples: one after each round.
        warm_up: the sample that memory at the end is compared with: the first by which every attack has been made once.
            None while there is none, as in a soak of less than some minutes; memory is then not judged.
        warm_up_name: what it is called.
        late_threads: that the server starts when they are first needed, and keeps.
        late_files: that the server opens when they are first needed, and keeps.
        reloads: SIGHUPs sent.
        notes: what else is to be known of it.
        problems: whatever else went wrong.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    attacks: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    warm_up: int | None = None
    warm_up_name: str = "each attack made once"
    late_threads: int = 0
    late_files: int = 0
    reloads: int = 0
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, entry: Entry) -> None:
        """Add what one client saw."""
        self.entries.setdefault(name, Entry()).add(entry)

    def verdict(self) -> list[str]:
        """What is wrong; nothing, if the soak has been passed."""
        wrong = list(self.problems)
        for name, entry in self.entries.items():
            if entry.lost:
                wrong.append(f"{name}: {entry.lost} requests lost")
            if entry.faults:
                wrong.append(f"{name}: {len(entry.faults)} answers wrong, such as {entry.faults[:_SHOWN_FAULTS]}")
            if not entry.right:
                wrong.append(f"{name}: no request was answered")
        if self.samples:
            wrong += self.left_behind(self.samples[-1])
        if self.warm_up is not None:
            wrong += _growth(self.samples[self.warm_up], self.samples[self.warm_up + 1 :])
        return wrong

    def left_behind(self, now: Sample) -> list[str]:
        """What the server has more of than at the start, beyond what it keeps."""
        start = self.samples[0]
        wrong = []
        if now.files > start.files + self.late_files:
            wrong.append(f"file descriptors grew from {start.files} to {now.files}")
        if now.threads > start.threads + self.late_threads:
            wrong.append(f"threads grew from {start.threads} to {now.threads}")
        return wrong

    def markdown(self, heading: str) -> str:
        """The account as a section: ``heading`` is its first paragraph."""
        lines = [heading, ""]
        lines += ["| clients | sent | answered right | refused, by status | given up by the client | lost | wrong |"]
        lines += ["|---|---:|---:|---|---:|---:|---:|"]
        total = Entry()
        for name, entry in [*sorted(self.entries.items()), ("all", total)]:
            if entry is not total:
                total.add(entry)
            refused = ", ".join(f"{status} {count:,}" for status, count in sorted(entry.refused.items())) or "none"
            lines.append(
                f"| {name} | {entry.sent:,} | {entry.right:,} | {refused} | {entry.given_up:,} | {entry.lost:,} "
                f"| {len(entry.faults):,} |"
            )
        ended = ", ".join(f"{name} {count:,}" for name, count in sorted(self.attacks.items())) or "none"
        lines += ["", f"Connections of attackers, by how they ended: {ended}. SIGHUPs: {self.reloads}.", ""]
        lines += ["| server, idle | memory (MiB, anonymous) | file descriptors | threads |", "|---|---:|---:|---:|"]
        for name, sample in self._milestones():
            lines.append(
                f"| {name}, {sample.seconds / 60:.1f} min | {sample.anonymous_mib:.1f} | {sample.files} "
                f"| {sample.threads} |"
            )
        lines += self._trend()
        for note in self.notes:
            lines += ["", note]
        verdict = self.verdict()
        lines += ["", "Passed." if not verdict else "**Failed**: " + "; ".join(verdict)]
        return "\n".join(lines) + "\n"

    def _trend(self) -> list[str]:
        """How memory went in the second half of the time, in words; nothing where there are too few samples."""
        late = self.samples[len(self.samples) // 2 :]
        if len(late) < LEAST_TREND:
            return []
        sizes = [sample.anonymous_mib for sample in late]
        slope = linear_regression([sample.seconds / 3600 for sample in late], sizes).slope
        return ["", f"Memory in the second half: {min(sizes):.1f} to {max(sizes):.1f} MiB, {slope:+.1f} MiB an hour."]

    def _milestones(self) -> Sequence[tuple[str, Sample]]:
        if not self.samples:
            return []
        last = len(self.samples) - 1
        names = {0: "start"}
        if self.warm_up is not None:
            names |= {self.warm_up: self.warm_up_name, (self.warm_up + last) // 2: "half-way from there"}
        names[last] = "end"
        return [(names[at], self.samples[at]) for at in sorted(names)]


def _growth(before: Sample, after: Sequence[Sample]) -> list[str]:
    """What is kept is in every sample, what an allocator keeps a while is not: the least of the last ones counts."""
    late = after[-max(1, len(after) // LATE_SHARE) :]
    if not late:
        return []
    growth = min(sample.anonymous_mib for sample in late) - before.anonymous_mib
    most = before.anonymous_mib * MOST_GROWTH + MOST_GROWTH_MIB
    return [f"memory grew by {growth:.1f} MiB, at most {most:.1f}"] if growth > most else []
