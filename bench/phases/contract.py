"""What a phase tells the run about itself: its cases, and how one sample of a case is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.ground.prepare import Prepared
from bench.record.cases import Case
from bench.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the cases of a phase are made from: the run's options, the labels of its folders, the
    cores that it may use, and the device as it was found (`cpu`, `cuda:0`, ...)."""

    settings: Settings
    labels: Sequence[str]
    cores: int
    device: str


def nothing_refused(case: Case, ready: Prepared) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """`name` is the record's phase and that of bench_<name>.py. `cases` lists what is measured: a
    case's `loader` is the way, and a case without a storage works on tensors that lie in memory
    when the clock starts. `target` names the function that a child runs (`module:function`); it
    gets the keywords way, options, threads, device, layout, cores, touch_bytes, manifest_path,
    reference_path, and those of `args`. `refuses` says why a case can't be measured here, None if
    it can; `memory_bytes` what it needs of ordinary memory. `form` names the form of the model that
    a case reads where the run has made it (bench.ground.ready), None for the model as it is.
    `preload` is a function that the fork server calls before the first child: an import that takes
    seconds.
    `usual` says which cases an ordinary run measures, which is to take three minutes; the others
    are for --full, or for who names the phase's bench."""

    name: str
    target: str
    cases: Callable[[Asked], list[Case]]
    memory_bytes: Callable[[Case, Prepared], int]
    refuses: Callable[[Case, Prepared], str | None] = nothing_refused
    args: Callable[[Case, Settings], dict[str, Any]] = lambda case, settings: {}
    form: Callable[[Case], str | None] = lambda case: None
    preload: str | None = None
    usual: Callable[[Case], bool] = lambda case: True
