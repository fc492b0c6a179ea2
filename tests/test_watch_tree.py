"""The process tree: who is in it, and that nothing that was counted is lost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.watch.processes import Counts, Process, all_pids, parse_process, read_process
from bench.watch.samples import MOST, Moment, Series, next_interval
from bench.watch.tree import Snapshot, Tree

TOP = 100


def process(
    pid: int, parent: int, faults: int = 10, *, reaped: int = 0, state: str = "S", started: int = 1
) -> Process:
    """One whose every count follows from its faults: what is reaped is in its bytes, too."""
    return Process(
        pid=pid,
        parent=parent,
        group=pid,
        started=started,
        name=f"p{pid}",
        state=state,
        own=Counts(
            cpu_seconds=float(faults),
            minor_faults=faults,
            device_bytes=faults + reaped,
            read_bytes=faults + reaped,
        ),
        reaped=Counts(cpu_seconds=float(reaped), minor_faults=reaped),
        resident_bytes=1000,
    )


class Host:
    """A host whose processes a test changes between looks; counts what is read."""

    def __init__(self, *processes: Process) -> None:
        self.reads: list[int] = []
        self.tree = Tree(TOP, pids=lambda: list(self.processes), read=self.read)
        self.now = 0.0
        self.be(*processes)

    def be(self, *processes: Process) -> None:
        self.processes = {one.pid: one for one in (process(TOP, 1), *processes)}

    def read(self, pid: int, *, whole: bool) -> Process | None:
        self.reads.append(pid)
        found = self.processes.get(pid)
        if found is None or whole:
            return found
        return replace(found, own=replace(found.own, device_bytes=None, read_bytes=None))

    def look(self, *processes: Process) -> Snapshot:
        self.be(*processes)
        self.now += 1.0
        return self.tree.look(self.now)


def faults(snapshot: Snapshot) -> tuple[int, float, int | None]:
    counts = snapshot.counts
    assert counts.read_bytes == counts.device_bytes
    return counts.minor_faults, counts.cpu_seconds, counts.device_bytes


def test_all_descendants_are_counted_and_nobody_else() -> None:
    seen = Host().look(process(2, TOP, 5), process(3, 2, 7), process(4, 3, 11), process(9, 1, 1000))
    assert faults(seen) == (23, 23.0, 23)
    assert (seen.alive, seen.resident_bytes) == (3, 3000)


def test_strangers_are_read_once() -> None:
    host = Host()
    for _ in range(5):
        host.look(process(2, TOP), *(process(pid, 1) for pid in range(1000, 1100)))
    assert sum(pid >= 1000 for pid in host.reads) == 100


def test_a_stranger_s_number_may_become_one_of_ours() -> None:
    host = Host()
    host.look(process(50, 1))
    host.look()
    assert faults(host.look(process(50, TOP, 3, started=9)))[0] == 3


def test_a_child_that_was_waited_for_is_counted_once() -> None:
    host = Host()
    host.look(process(2, TOP, 5), process(3, 2, 70))
    # Its last faults came after the look: the parent knows of them.
    assert faults(host.look(process(2, TOP, 6, reaped=75))) == (81, 81.0, 81)


def test_a_child_that_came_and_went_between_two_looks_is_counted() -> None:
    host = Host()
    host.look(process(2, TOP, 5))
    assert faults(host.look(process(2, TOP, 5, reaped=500)))[0] == 505


def test_a_child_that_nobody_waited_for_keeps_what_was_last_seen() -> None:
    host = Host()
    host.look(process(2, TOP, 5), process(3, 2, 70))
    assert faults(host.look(process(2, TOP, 5))) == (75, 75.0, 75)
    assert faults(host.look(process(2, TOP, 8))) == (78, 78.0, 78)


def test_of_two_children_one_was_waited_for() -> None:
    host = Host()
    host.look(process(2, TOP, 5), process(3, 2, 70), process(4, 2, 40))
    assert faults(host.look(process(2, TOP, 5, reaped=41)))[0] == 5 + 41 + 70


def test_a_whole_branch_dies_at_once() -> None:
    host = Host()
    host.look(process(2, TOP, 5), process(3, 2, 20), process(4, 3, 30))
    # 3 waited for 4 and 2 waited for 3: it has all of it.
    assert faults(host.look(process(2, TOP, 5, reaped=50)))[0] == 55
    host = Host()
    host.look(process(2, TOP, 5), process(3, 2, 20), process(4, 3, 30))
    assert faults(host.look())[0] == 55


def test_an_orphan_stays_in_the_tree() -> None:
    host = Host()
    host.look(process(2, TOP, 5), process(3, 2, 20))
    seen = host.look(process(3, 1, 25))
    assert (faults(seen)[0], seen.alive) == (30, 1)


def test_a_number_that_was_given_away_again_is_another_process() -> None:
    host = Host()
    host.look(process(2, TOP, 50))
    seen = host.look(process(2, TOP, 3, started=99))
    assert faults(seen)[0] == 53
    assert [one.started for one in host.tree.processes()] == [99]


def test_counts_never_go_down() -> None:
    host = Host()
    before = host.look(process(2, TOP, 5), process(3, 2, 20), process(4, 2, 1))
    for state in ((process(2, TOP, 6, reaped=20),), (process(2, TOP, 6, reaped=20),), ()):
        after = host.look(*state)
        assert after.counts.minor_faults >= before.counts.minor_faults
        before = after


def test_zombies_are_counted_but_not_alive() -> None:
    seen = Host().look(process(2, TOP, 5, state="Z"), process(3, TOP, 6, state="D"))
    assert faults(seen)[0] == 11
    assert (seen.alive, seen.blocked) == (1, True)


def test_the_busiest_of_an_interval() -> None:
    host = Host()
    host.look(process(2, TOP, 500), process(3, TOP, 1))
    seen = host.look(process(2, TOP, 501), process(3, TOP, 8))
    assert (seen.busiest, seen.busiest_cpu_seconds) == ("p3[3]", 7.0)


def test_a_name_may_hold_anything() -> None:
    fields = " ".join(["S", "7", *["0"] * 5, "11", "12", "13", "14", "100", "200", "300", "400"])
    rest = " ".join(["0"] * 4 + ["4242", "0", "3"] + ["0"] * 28)
    found = parse_process(f"42 (a) S 1 (b) {fields} {rest}".encode(), b"read_bytes: 8\nrchar: 9\n")
    assert found is not None
    assert (found.pid, found.name, found.parent, found.started) == (42, "a) S 1 (b", 7, 4242)
    assert (found.own.minor_faults, found.reaped.minor_faults) == (11, 12)
    assert (found.own.major_faults, found.reaped.major_faults) == (13, 14)
    assert (found.own.device_bytes, found.own.read_bytes) == (8, 9)
    ticks = os.sysconf("SC_CLK_TCK")
    assert found.own.cpu_seconds == pytest.approx(300 / ticks)
    assert found.reaped.system_seconds == pytest.approx(400 / ticks)


@pytest.mark.parametrize("content", [b"", b"42", b"42 (x) S 1", b"\xff\xfe", b"x (y) S 1 2 3"])
def test_what_is_no_stat_is_nobody(content: bytes) -> None:
    assert parse_process(content, b"") is None


def test_bytes_that_the_kernel_keeps_to_itself_are_null() -> None:
    content = Path("/proc/self/stat").read_bytes()
    found = parse_process(content, b"")
    assert found is not None
    assert found.own.device_bytes is None


def test_this_process_is_there() -> None:
    assert os.getpid() in all_pids()
    found = read_process(os.getpid())
    assert found is not None
    assert found.parent == os.getppid()
    assert found.resident_bytes > 1 << 20
    assert read_process(0) is None


def series(moments: Iterable[tuple[float, int]]) -> Series:
    found = Series()
    for time, count in moments:
        counts = Counts(minor_faults=count, cpu_seconds=float(count))
        snapshot = Snapshot(
            time=time,
            counts=counts,
            resident_bytes=count,
            alive=1,
            blocked=False,
            busiest="x",
            busiest_cpu_seconds=1.0,
        )
        found.add(Moment(snapshot=snapshot, stalled_seconds=time / 2))
    return found


def test_between_looks_counts_are_interpolated() -> None:
    seen = series([(0.0, 0), (1.0, 100), (2.0, 300)]).between(0.5, 1.5)
    assert seen is not None
    assert seen.counts.minor_faults == 50 + 100
    assert seen.stalled_seconds == pytest.approx(0.5)
    assert seen.looks == 2
    assert seen.busiest_cpu_seconds == pytest.approx(1.0)


def test_spans_that_meet_add_up_to_the_whole() -> None:
    found = series([(0.0, 0), (1.0, 100), (2.0, 300), (4.0, 400)])
    spans = [found.between(a, b) for a, b in ((0.0, 0.3), (0.3, 2.2), (2.2, 4.0))]
    assert sum(span.counts.minor_faults for span in spans if span) == 400


def test_before_the_first_look_nothing_was_counted() -> None:
    found = series([(1.0, 100)]).between(0.0, 2.0)
    assert found is not None
    assert found.counts.minor_faults == 100
    assert Series().between(0, 1) is None


def test_hours_are_kept_in_bounded_memory() -> None:
    found = series((at / 10, at) for at in range(10 * MOST + 7))
    assert len(found) <= MOST
    whole = found.between(0.0, 1e9)
    assert whole is not None
    assert whole.counts.minor_faults == 10 * MOST + 6
    assert whole.busiest_cpu_seconds == pytest.approx(10 * MOST + 6, rel=0.01)


@pytest.mark.parametrize(("cost", "interval"), [(0.0, 0.05), (0.0004, 0.1), (1.0, 10.0)])
def test_looks_that_cost_more_come_less_often(cost: float, interval: float) -> None:
    assert next_interval(cost) == pytest.approx(interval)


def test_counts_that_are_unknown_on_one_side_are_the_other_side_s() -> None:
    known, unknown = Counts(device_bytes=5), Counts()
    assert known.plus(unknown).device_bytes == unknown.plus(known).device_bytes == 5
    assert unknown.plus(unknown).device_bytes is None
    assert replace(known, device_bytes=3).minus(known).device_bytes == 0
