"""The matrix: which cases a run has, and the order in which it walks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record.cases import Case
from bench.run.matrix import ceiling_cases, loader_cases, store_threads, twins, walk
from bench.settings import Settings, SettingsError, parse_settings
from loaders.contract import Loader
from loaders.registry import Entry, entries


class Plain(Loader):
    name = "plain"
    summary = "reads"
    formats = frozenset({"safetensors"})
    ownership = "owned"

    def load(self, checkpoint: Any, stamp: Any) -> Any: ...


class Safe(Plain):
    name = "safetensors-mmap"


class Threaded(Plain):
    name = "threaded"
    threaded = True
    options: Mapping[str, Any] = {"big": False, "n": 1}  # type: ignore[misc]
    variants = ({}, {"big": True})  # type: ignore[assignment]

    def __init__(self, threads: int = 1, **given: Any) -> None:
        super().__init__(threads, **given)
        self.require_positive("n")


class MadeUp(Plain):
    name = "made-up"
    formats = frozenset()


class Stranger(Plain):
    name = "stranger"
    variants = ({"no-such-option": 1},)  # type: ignore[assignment]

    def __init__(self, threads: int = 1, **given: Any) -> None:
        super().__init__(threads, **given)
        raise OSError("no such device")


class Far(Threaded):
    name = "far"
    place = "address"


KNOWN = {
    cls.name: Entry(name=cls.name, cls=cls) for cls in (Plain, Safe, Threaded, MadeUp, Stranger)
} | {"broken": Entry(name="broken", cls=None, reason="import failed")}


def cases(*, known: Mapping[str, Entry] = KNOWN, **given: Any) -> list[Case]:
    settings: Settings = parse_settings(given, smoke=False, seed=1)
    return loader_cases(settings, dict(known), ["ext4"], cores=2)


def test_every_loader_with_its_variants_in_both_cache_states() -> None:
    ids = [case.test_id for case in cases()]
    assert ids == [
        "plain-cold-ext4",
        "plain-warm-ext4",
        "safetensors-mmap-cold-ext4",
        "safetensors-mmap-warm-ext4",
        "threaded-cold-t2-ext4",
        "threaded-warm-t2-ext4",
        "threaded-big=true-cold-t2-ext4",
        "threaded-big=true-warm-t2-ext4",
        "made-up-ext4",
        "stranger-no-such-option=1-cold-ext4",
        "stranger-no-such-option=1-warm-ext4",
        "broken-cold-ext4",
        "broken-warm-ext4",
        "safetensors-mmap-twin=true-cold-ext4",
        "safetensors-mmap-twin=true-warm-ext4",
    ]


def test_threads_are_swept_only_where_they_matter() -> None:
    found = cases(loader=["plain", "threaded:big=true"], threads="1,4", cache="warm")
    assert [(case.loader, case.threads) for case in found if not case.twin] == [
        ("plain", None),
        ("threaded", 1),
        ("threaded", 4),
    ]


def test_two_storages() -> None:
    settings = parse_settings({"loader": ["plain"]}, smoke=False, seed=1)
    found = loader_cases(settings, KNOWN, ["nvme", "nfs"], cores=2)
    assert [(case.storage, case.cache, case.twin) for case in found] == [
        ("nvme", "cold", False),
        ("nvme", "warm", False),
        ("nfs", "cold", False),
        ("nfs", "warm", False),
        ("nvme", "cold", True),
        ("nvme", "warm", True),
        ("nfs", "cold", True),
        ("nfs", "warm", True),
    ]


def test_one_contestant_runs_twice_under_two_names() -> None:
    found = cases()
    twin = [case for case in found if case.twin]
    assert {case.loader for case in twin} == {"safetensors-mmap"}
    for case in twin:
        first = [one for one in found if one.loader == case.loader and one.cache == case.cache]
        assert len(first) == 2
        assert first[0].option_text == "-"
        assert case.option_text == "twin=true"
        assert case.options == first[0].options


def test_without_the_usual_one_the_first_runs_twice_in_one_variant() -> None:
    twin = [case for case in cases(loader=["threaded", "plain"], threads="1,2") if case.twin]
    assert [(case.loader, case.options, case.threads, case.cache) for case in twin] == [
        ("threaded", {}, 1, "cold"),
        ("threaded", {}, 1, "warm"),
    ]
    assert twins([]) == []


def test_a_loader_named_twice_is_measured_once() -> None:
    found = cases(loader=["threaded", "threaded:big=true", "threaded"], cache="cold")
    ids = [case.test_id for case in found]
    assert len(ids) == len(set(ids)) == 3


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ("no-such", "--loader=no-such: no such loader; there are: plain, safetensors-mmap"),
        (":x=1", "--loader=: no such loader"),
        ("plain:x=1", "--loader: plain has no option 'x' (it has: none)"),
        ("threaded:big=1", "--loader: threaded: big must be bool, got int (1)"),
        ("threaded:n=0", "--loader: threaded: n must be at least 1, got 0"),
        ("stranger:", "--loader=stranger: OSError: no such device; leave it out"),
    ],
)
def test_what_the_user_wrote_wrong_is_one_clear_error(loader: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        cases(loader=[loader])
    assert str(caught.value).startswith(reason)


def test_ceilings_of_both_states_and_of_memory() -> None:
    def ids(**given: Any) -> list[str]:
        settings = parse_settings(given, smoke=False, seed=1)
        return [case.test_id for case in ceiling_cases(settings, ["ext4"], cores=4)]

    memory = [
        "memory-read",
        "memory-copy-copiers=1",
        "memory-copy-copiers=4",
        "first-touch-pages=4k",
        "first-touch-pages=huge",
        "nothing",
    ]
    cold = [
        "direct-ring-cold-ext4",
        "fio-cold-ext4",
        "owned-read-pages=4k-cold-ext4",
        "owned-read-pages=huge-cold-ext4",
    ]
    warm = [
        "cache-ring-warm-ext4",
        "owned-read-pages=4k-warm-ext4",
        "owned-read-pages=huge-warm-ext4",
    ]
    assert ids() == [*cold, *warm, *memory]
    assert ids(cache="cold") == [*cold, *memory]
    assert ids(cache="warm") == [*warm, *memory]


def test_the_real_loaders_make_a_matrix_without_two_of_a_name() -> None:
    found = cases(known=entries())
    ids = [case.test_id for case in found]
    assert len(ids) == len(set(ids))
    assert sum(case.twin for case in found) == 2


@given(st.integers(1, 30), st.integers(1, 6), st.integers())
def test_c78_each_pass_is_a_permutation_of_all_cases(count: int, passes: int, seed: int) -> None:
    items = [(case, number) for number in range(passes) for case in range(count)]
    pass_of = {index: number for index, (_, number) in enumerate(items)}
    order = walk(items, pass_of, seed)
    assert sorted(order) == sorted(items)
    assert [number for _, number in order] == sorted(number for _, number in items)
    assert walk(items, pass_of, seed) == order


def test_passes_differ_in_their_order_and_runs_do_too() -> None:
    items = [(case, number) for number in range(3) for case in range(30)]
    pass_of = {index: number for index, (_, number) in enumerate(items)}
    one, two = walk(items, pass_of, 1), walk(items, pass_of, 2)
    orders = {tuple(case for case, number in one if number == of) for of in range(3)}
    assert len(orders) == 3
    assert one != two


def test_what_belongs_to_no_pass_is_left_out_of_the_walk() -> None:
    assert walk(["a", "b", "c"], {2: 1}, 0) == ["c"]
    assert walk([], {}, 0) == []


def at(**given: Any) -> set[tuple[str, str | None, str, int | None]]:
    """(loader, storage, cache, threads) of a run on a folder and at an address."""
    given.setdefault("stores", ["web"])
    stores, labels = given.pop("stores"), given.pop("labels", ["here"])
    settings = parse_settings(given, smoke=False, seed=1)
    known = KNOWN | {"far": Entry(name="far", cls=Far)}
    cases = loader_cases(settings, known, labels, 2, stores)
    return {(one.loader, one.storage, one.cache, one.threads) for one in cases}


def test_what_reads_addresses_is_measured_there_and_the_others_on_folders() -> None:
    found = at()
    assert {one for one in found if one[1] == "web"} == {("far", "web", "none", 16)}
    assert {one[0] for one in found if one[1] == "here"} == {*KNOWN}
    assert "far" not in {one[0] for one in at(stores=[])}
    assert at(labels=[]) == {("far", "web", "none", 16)}


def test_named_loaders_go_where_they_fit_and_are_skipped_where_nothing_fits() -> None:
    both = at(loader=["far", "plain"], cache="cold")
    assert both == {("far", "web", "none", 16), ("plain", "here", "cold", None)}
    assert at(loader=["plain"], labels=[]) == {("plain", "web", "none", None)}
    assert {one[:2] for one in at(loader=["far"], stores=[])} == {("far", "here")}


def test_threads_at_an_address_are_requests_at_a_time() -> None:
    assert {one[3] for one in at(labels=[], threads="3,5")} == {3, 5}
    assert {one[3] for one in at(labels=[], full=True)} == {1, 2, 4, 8, 16}
    assert {store_threads(cores) for cores in (1, 4, 5, 64)} == {16, 20, 256}


def test_the_contestant_at_an_address_runs_twice_too() -> None:
    settings = parse_settings({}, smoke=False, seed=1)
    known = KNOWN | {"far": Entry(name="far", cls=Far)}
    cases = loader_cases(settings, known, ["here"], 2, ["web"])
    twice = {(one.loader, one.storage) for one in cases if one.twin}
    assert twice == {("safetensors-mmap", "here"), ("far", "web")}
