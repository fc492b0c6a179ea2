"""Sentences on copies to a device, slicing and assembling; and a simulated device is always called
one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.advice.findings import advise
from bench.page.render import markdown
from bench.page.sections import sections
from bench.page.tables import tables
from bench.page.terminal import render
from bench.pictures.album import pictures_of
from bench.record.records import Run, Sample, Seconds, StorageRecord
from bench.words.phase_findings import phase_findings
from tests.tiny_report import NVME, load, made_run

SIMULATED = {"simulated": True, "device": {"name": "simulated NPU", "simulated": True}}


def phase(
    name: str,
    way: str,
    seconds: float,
    number: int = 1,
    *,
    device: str = "cuda:0",
    storage: StorageRecord | None = None,
    options: Mapping[str, Any] | None = None,
    layout: str = "tp1",
    details: Mapping[str, Any] | None = None,
) -> Sample:
    """A sample of a later phase that took so long for one GB."""
    options = dict(options or {})
    made = load(
        way,
        1.0,
        number,
        storage=storage,
        cache="cold" if storage else "none",
        ownership="device" if name != "slice" else "owned",
    )
    ids = [name, way, *(f"{key}={value}" for key, value in options.items()), device, layout]
    return replace(
        made,
        case="/".join(ids),
        phase=name,
        options=options,
        device=device,
        layout=layout,
        seconds=Seconds(total=seconds, transfer=seconds),
        runner_seconds=seconds,
        details=details or {},
    )


def said(*samples: Sample, **plan: Any) -> list[str]:
    return phase_findings(made_run(*samples, **plan), [])


def copies(device: str = "cuda:0", details: Mapping[str, Any] | None = None) -> list[Sample]:
    return [
        phase("host_to_device", way, seconds * drift, number, device=device, details=details)
        for number, drift in ((1, 1.0), (2, 1.2))
        for way, seconds in (("whole", 0.04), ("pinned-ring", 0.05), ("pageable", 0.2))
    ]


def test_the_best_way_is_held_against_one_copy_of_everything() -> None:
    (sentence,) = said(*copies())
    assert sentence == (
        "To cuda:0: pinned-ring is the best way for separate tensors, 80 % (0.80 to 0.80, range of "
        "2) of one copy of everything, which moves 22.92 GB/s."
    )


def test_a_ring_that_is_not_the_best_is_told_beside_it() -> None:
    better = phase("host_to_device", "coalesced", 0.042)
    first, ring = said(*(one for one in copies() if one.pass_number == 1), better)
    assert "coalesced is the best way" in first
    assert ring == "To cuda:0: pinned-ring reaches 80 % (one pass, no spread known) of that copy."


def test_pinning_is_told_against_the_copy_that_it_is_for() -> None:
    pinned = phase("host_to_device", "pinned", 0.05, details={"seconds": {"pin": 0.15}})
    plain = phase("host_to_device", "pageable", 0.05, details={"seconds": {"pin": None}})
    assert said(pinned, plain) == [
        "To cuda:0: pinning comes on top: pinned 0.150 s, 3.0 x its copy."
    ]


def test_on_the_host_alone_it_is_called_a_memory_copy_everywhere() -> None:
    run = made_run(*copies("cpu"))
    (sentence,) = phase_findings(run, [])
    assert sentence.startswith("Memory copy (no accelerator")
    assert "(no accelerator: a memory copy)" in render(run)
    (table,) = tables(run)
    assert table.title == "Memory copy to a second buffer (no accelerator)"
    assert all("memory copy" in picture.title for picture in pictures_of(run, []))
    assert "ulimit" not in render(run)


def test_the_engines_way_from_a_mapping_is_told_beside_resident_memory() -> None:
    mapped = phase("host_to_device", "mapped", 0.5, storage=NVME)
    (sentence,) = said(mapped, phase("host_to_device", "pageable", 0.25))
    assert sentence.startswith(
        "To cuda:0: from a mapping, cold on nvme, as engines copy, 2.00 GB/s"
    )
    assert "resident, 4.00" in sentence


def test_a_simulated_device_is_never_shown_as_hardware() -> None:
    """Every title and sentence that names the device calls it simulated."""
    run = made_run(
        *copies("npu:0", SIMULATED),
        *[
            phase("assemble", way, 0.5, storage=NVME, device="npu:0", details=SIMULATED)
            for way in ("read-alone", "copy-alone", "overlapped")
        ],
    )
    found, across = sections([run])
    told = [
        render(run),
        markdown(found, across, "report"),
        *(text for picture in pictures_of(run, []) for text in (picture.title, picture.text)),
        *(picture.svg for picture in pictures_of(run, [])),
        *phase_findings(run, []),
    ]
    for text in told:
        assert text.count("npu:0") == text.count("simulated npu:0"), text
    assert all("simulated" in picture.title for picture in pictures_of(run, []))
    assert render(run).count("no figures of hardware") == 2
    assert all("no figures of hardware" in table.title for table in found[0].tables)


def test_nothing_is_advised_from_a_simulated_device_or_from_memory_copies() -> None:
    limit = {"process_limits": {"memlock": {"soft": 65536, "hard": 65536}}}

    def advised(device: str, details: Mapping[str, Any] | None = None) -> list[str]:
        samples = [
            phase("host_to_device", way, seconds, number, device=device, details=details)
            for number in (1, 2, 3)
            for way, seconds in (("pinned", 0.05), ("pageable", 0.2))
        ]
        run = made_run(*samples)
        host = {**(run.host or {}), "host": limit}
        return [one.name for one in advise(replace(run, host=host))]

    assert advised("cuda:0") == ["locked-memory"]
    assert advised("cpu") == advised("npu:0", SIMULATED) == []


def cuts(rule: str = "column") -> list[Sample]:
    asked = {"rule": rule}
    return [
        phase("slice", way, seconds, number, device="cpu", options=asked, layout="tp8")
        for number in (1, 2)
        for way, seconds in (("copy", 0.1), ("stock", 0.4), ("ours", 0.125))
    ]


def test_slicing_is_held_against_the_engines_way_and_a_bare_copy_rule_by_rule() -> None:
    assert said(*cuts("column"), *cuts("row")) == [
        f"Slicing for tp8, {rule} cuts: ours is 3.20 x (3.20 to 3.20, range of 2) as fast as "
        f"narrow and copy_ and 80 % (0.80 to 0.80, range of 2) of a bare copy."
        for rule in ("column", "row")
    ]


def test_what_is_fetched_for_each_byte_kept_is_told_for_columns_and_rows() -> None:
    by_rule = {
        "column": {"fetched_bytes": 100, "kept_bytes": 100},
        "row": {"fetched_bytes": 800, "kept_bytes": 100},
        "whole": {"fetched_bytes": 5, "kept_bytes": 5},
        "experts": {"fetched_bytes": 0, "kept_bytes": 0},
    }
    slim = phase(
        "slice",
        "read-slices",
        0.1,
        device="cpu",
        storage=NVME,
        layout="tp8",
        details={"by_rule": by_rule},
    )
    everything = phase("slice", "read-all", 0.8, device="cpu", storage=NVME, layout="tp8")
    assert said(slim, everything) == [
        "One rank of tp8, cold on nvme: reading only its slices is 8.00 x (one pass, no spread "
        "known) as fast as reading everything.",
        "Bytes fetched for each byte that a rank of tp8 keeps: 1.00 for column cuts, 8.00 for row "
        "cuts.",
    ]


def stages(read: float, copy: float, both: float, number: int = 1, **more: Any) -> list[Sample]:
    options = {"into": "tensors"}
    return [
        phase("assemble", way, seconds, number, storage=NVME, options=options, **more)
        for way, seconds in (("read-alone", read), ("copy-alone", copy), ("overlapped", both))
    ]


def test_overlapping_is_held_against_the_slowest_stage_pass_by_pass() -> None:
    assert said(*stages(1.0, 0.5, 1.05), *stages(2.0, 0.5, 2.1, 2)) == [
        "Assembling cold on nvme, to cuda:0: overlapped it takes 1.05 x (1.05 to 1.05, range of 2) "
        "as long as its slowest stage alone (read, 1.50 s); one after another would be 2.00 s; "
        "85 % of what could be hidden was."
    ]


def test_overlapping_that_hides_too_little_is_said_so() -> None:
    (sentence,) = said(*stages(1.0, 0.5, 1.4, device="cpu"))
    assert "to host memory (a memory copy)" in sentence
    assert "more than the 1.1 aimed at" in sentence
    assert "20 % of what could be hidden was" in sentence


@pytest.mark.parametrize("absent", ["read-alone", "copy-alone", "overlapped"])
def test_nothing_is_said_of_overlap_without_all_of_its_stages(absent: str) -> None:
    assert said(*(one for one in stages(1.0, 0.5, 1.0) if one.loader != absent)) == []


def test_passes_that_lack_a_stage_are_not_paired() -> None:
    one, two = stages(1.0, 0.5, 1.05), stages(9.0, 0.5, 9.9, 2)
    (sentence,) = said(*one, *(sample for sample in two if sample.loader != "read-alone"))
    assert "1.05 x (one pass" in sentence


@pytest.mark.parametrize(
    "samples", [copies(), cuts(), stages(1.0, 0.5, 1.1), [load("parallel", 1.0)], []]
)
def test_smoke_and_reading_say_nothing_here(samples: list[Sample]) -> None:
    assert said(*samples, smoke=True) == []
    assert said(*[one for one in samples if one.phase == "disk_to_host"]) == []


@given(st.lists(st.sampled_from([*copies(), *cuts(), *stages(1.0, 0.5, 1.1)]), max_size=8))
def test_any_part_of_a_run_can_be_told(samples: list[Sample]) -> None:
    """A run that was broken off anywhere: sentences end, and none has a figure that is none."""
    run: Run = made_run(*samples)
    for sentence in phase_findings(run, []):
        assert sentence.endswith(".")
        assert "nan" not in sentence.split()
        assert "inf" not in sentence.split()
