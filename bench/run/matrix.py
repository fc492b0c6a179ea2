"""The matrix of a run: which cases there are, in which order they are walked. Pure arithmetic."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from bench.phases.contract import Asked, Phase
from bench.phases.table import PHASES
from bench.record.cases import Cache, Case
from bench.settings import LoaderChoice, Settings, SettingsError
from loaders.contract import Loader, OptionError
from loaders.registry import Entry

TWIN = "safetensors-mmap"
"""The contestant that runs twice under two names, when it is there."""

Item = TypeVar("Item")


def loader_cases(
    settings: Settings,
    entries: dict[str, Entry],
    labels: Sequence[str],
    cores: int,
    stores: Sequence[str] = (),
) -> list[Case]:
    """The disk_to_host cases, on folders (`labels`) and at addresses (`stores`). SettingsError for
    a loader or option that doesn't exist. A named loader that fits neither kind of place is there
    all the same: its sample says why it is skipped."""
    choices = _choices(settings, entries)
    both = bool(labels and stores)
    for_folders = [one for one in choices if _fits(settings, entries[one.name], both, store=False)]
    for_stores = [one for one in choices if _fits(settings, entries[one.name], both, store=True)]
    return [
        *_cases(settings, entries, for_folders, labels, cores, store=False),
        *_cases(settings, entries, for_stores, stores, store_threads(cores), store=True),
    ]


def store_threads(cores: int) -> int:
    """Requests at a time: they wait more than they work."""
    return max(16, 4 * cores)


def _cases(
    settings: Settings,
    entries: dict[str, Entry],
    choices: Sequence[LoaderChoice],
    labels: Sequence[str],
    threads_unless_given: int,
    *,
    store: bool,
) -> list[Case]:
    cases: dict[str, Case] = {}  # by name: `--loader=pt --loader=pt:mmap=true` names one twice
    for choice in choices:
        cls = entries[choice.name].cls
        if cls is not None and choice.options is not None:
            _check(cls, choice.options)
        for options in _option_sets(choice, cls):
            for threads in _thread_counts(settings, cls, threads_unless_given, store):
                for label in labels:
                    for cache in _caches(settings, cls, store):
                        case = Case(
                            phase="disk_to_host",
                            loader=choice.name,
                            options=options,
                            threads=threads,
                            cache=cache,
                            storage=label,
                        )
                        cases.setdefault(case.test_id, case)
    return [*cases.values(), *twins(cases.values())]


def ceiling_cases(settings: Settings, labels: Sequence[str], cores: int) -> list[Case]:
    """The ceilings: what this storage and this memory can do, measured in the same passes."""

    def case(loader: str, cache: Cache, storage: str | None, **options: str | int) -> Case:
        return Case(phase="ceiling", loader=loader, cache=cache, storage=storage, options=options)

    cases = []
    for label in labels:
        if "cold" in settings.caches:
            cases += [case("direct-ring", "cold", label), case("fio", "cold", label)]
            cases += [case("owned-read", "cold", label, pages=kind) for kind in ("4k", "huge")]
        if "warm" in settings.caches:
            cases.append(case("cache-ring", "warm", label))
            cases += [case("owned-read", "warm", label, pages=kind) for kind in ("4k", "huge")]
    cases.append(case("memory-read", "none", None))
    cases += [case("memory-copy", "none", None, copiers=n) for n in sorted({1, cores})]
    cases += [case("first-touch", "none", None, pages=kind) for kind in ("4k", "huge")]
    cases.append(case("nothing", "none", None))
    return cases


def phase_cases(settings: Settings, labels: Sequence[str], cores: int, device: str) -> list[Case]:
    """The cases of every phase after reading (bench.phases), on that device. They work on a
    folder's files. Who names loaders wants to know of those alone: a phase is measured where its
    bench is named, too, or with --full what those loaders take part in."""
    if not labels:
        return []
    asked = Asked(settings=settings, labels=labels, cores=cores, device=device)

    def wanted(name: str, phase: Phase, case: Case) -> bool:
        if name in settings.named:
            return True
        if settings.loaders:
            return settings.full and "by" in case.options
        return settings.full or settings.smoke or phase.usual(case)

    return [
        case
        for name, phase in PHASES.items()
        for case in phase.cases(asked)
        if wanted(name, phase, case)
    ]


def twins(cases: Iterable[Case]) -> list[Case]:
    """The second entry of the contestant that shows the noise: the A/A pair. Without the usual one
    it is the first loader of the run."""
    cases = list(cases)
    names = [case.loader for case in cases]
    name = TWIN if TWIN in names else next(iter(names), None)
    found = [case for case in cases if case.loader == name]
    first = [case for case in found if case.option_text == found[0].option_text] if found else []
    return [
        Case(
            phase=case.phase,
            loader=case.loader,
            options=case.options,
            threads=case.threads,
            cache=case.cache,
            storage=case.storage,
            twin=True,
        )
        for case in first
        if case.threads == first[0].threads
    ]


def walk(items: Sequence[Item], pass_of: dict[int, int], seed: int) -> list[Item]:
    """Pass by pass, each in its own shuffled order, so that no contestant always follows the same
    one. `pass_of` maps an item's index to its pass."""
    order: list[Item] = []
    for number in sorted(set(pass_of.values())):
        members = [items[index] for index, its in pass_of.items() if its == number]
        random.Random(f"{seed}/{number}").shuffle(members)
        order += members
    return order


def _choices(settings: Settings, entries: dict[str, Entry]) -> Sequence[LoaderChoice]:
    for choice in settings.loaders:
        if choice.name not in entries:
            raise SettingsError(
                f"--loader={choice.name}: no such loader; there are: {', '.join(entries)}"
            )
    return settings.loaders or [LoaderChoice(name=name, options=None) for name in entries]


def _fits(settings: Settings, entry: Entry, both: bool, *, store: bool) -> bool:
    """Whether it can measure a folder, or a store, at all; where there is but one kind of place,
    what was named stays and is skipped with its reason."""
    if settings.loaders and not both:
        return True
    place = entry.cls.place if entry.cls is not None else "file"
    return (place == "address") == store


def _option_sets(choice: LoaderChoice, cls: type[Loader] | None) -> Sequence[dict[str, object]]:
    if choice.options is not None:
        return [dict(choice.options)]
    return [dict(variant) for variant in cls.variants] if cls else [{}]


def _check(cls: type[Loader], options: Mapping[str, Any]) -> None:
    """Only what the user wrote stops a run: a stranger's own variants are told by their samples."""
    try:
        cls(**options)
    except OptionError as error:
        raise SettingsError(f"--loader: {error}") from error
    except Exception as error:
        raise SettingsError(
            f"--loader={cls.name}: {type(error).__name__}: {error}; leave it out"
        ) from error


def _thread_counts(
    settings: Settings, cls: type[Loader] | None, threads: int, store: bool
) -> Sequence[int | None]:
    if cls is None or not cls.threaded:
        return [None]
    if settings.full and not settings.threads:
        most = threads if store else 4 * threads
        return [1 << power for power in range(7) if 1 << power <= most]
    return settings.threads or [threads]


def _caches(settings: Settings, cls: type[Loader] | None, store: bool) -> Sequence[Cache]:
    if store or (cls is not None and not cls.formats):
        return ["none"]  # opens no file of this host
    return settings.caches
