"""Advice from made-up runs: each kind with evidence, and silent without."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.advice import (
    huge_pages,
    loader,
    locked_memory,
    numa,
    page_cache,
    read_ahead,
    shared_memory,
    storage,
    threads,
    useless_threads,
    warm_up,
)
from bench.advice.company import flags
from bench.advice.contract import Advice, Saving, Seen, see
from bench.advice.findings import KINDS, MOST, advise, first_words, saving_words
from bench.advice.start import Start
from bench.cli import main
from bench.record.records import Run, Sample
from tests.tiny_records import write_run
from tests.tiny_report import (
    HOST,
    NET,
    NVME,
    STRANGER,
    ceiling,
    golden_samples,
    load,
    made_run,
    unmeasured,
)

PASSES = (1, 2, 3)
MMAP: dict[str, Any] = {"ownership": "mapped"}
MIB, GIB = 1 << 20, 1 << 30


def times(name: str, rate: float, make: Callable[..., Sample] = load, **more: Any) -> list[Sample]:
    """The same in three passes, a little apart."""
    return [make(name, rate * (1 + n / 100), n, **more) for n in PASSES]


def run_on(samples: list[Sample], *, blocks: dict[str, Any] | None = None, **facts: Any) -> Run:
    """A run on a host with these facts; `blocks` are those of nvme's disk."""
    host = {**HOST["host"], **facts}
    nvme = {"fs_type": "xfs", "block": {"disk": "nvme0n1", **(blocks or {})}}
    host["storage"] = {**HOST["host"]["storage"], "nvme": nvme}
    return replace(made_run(*samples), host={**HOST, "host": host})


def found(kind: Callable[[Seen], Advice | None], run: Run, **more: Any) -> Advice | None:
    return kind(see(run, **more))


def said(kind: Callable[[Seen], Advice | None], run: Run, **more: Any) -> Advice:
    """The kind's advice, complete."""
    advice = found(kind, run, **more)
    assert advice is not None
    assert advice.title
    assert advice.seen
    assert advice.do
    assert advice.cost
    return advice


def test_another_loader() -> None:
    slow, quick = times("safetensors-mmap", 1.0, **MMAP), times("pt-threads", 2.0, threads=2)
    advice = said(loader.find, run_on([*slow, *quick]))
    assert "--load-format pt" in advice.do[0]
    assert '"num_threads": 2' in advice.do[0]
    assert "pt-threads, 2 threads 2.04 GB/s" in advice.seen
    assert "*.pt or *.bin" in advice.cost
    assert advice.saving is not None
    assert advice.saving.seconds == pytest.approx(0.5 / 1.02)
    assert advice.saving.of == pytest.approx(1 / 1.02)
    same = times("pt-threads", 1.0, threads=2)
    assert found(loader.find, run_on([*slow, *same])) is None
    assert found(loader.find, run_on(quick)) is None  # nothing to compare with
    ours = times("parallel", 9.0, threads=2)  # the engine has no such way
    assert found(loader.find, run_on([*slow, *ours])) is None


def test_another_loader_only_where_this_version_of_the_engine_has_it() -> None:
    run = run_on([*times("safetensors-mmap", 1.0, **MMAP), *times("pt-threads", 2.0, threads=2)])
    assert found(loader.find, run, engine=(0, 10, 2)) is not None
    assert found(loader.find, run, engine=(0, 9)) is None


def test_on_a_network_the_usual_way_reads_ahead_by_itself() -> None:
    far: dict[str, Any] = {"storage": NET, "ownership": "mapped"}
    samples = [
        *times("safetensors-mmap", 0.1, **far),
        *times("safetensors-prefetch", 0.4, threads=8, **far),
        *times("safetensors-eager", 0.8, storage=NET),
    ]
    advice = said(loader.find, run_on(samples))
    assert "instead of safetensors-prefetch" in advice.title


def test_another_number_of_threads() -> None:
    swept = [
        s
        for n, rate in ((1, 1.0), (2, 2.0), (8, 1.2))
        for s in times("pt-threads", rate, threads=n)
    ]
    advice = said(threads.find, run_on(swept))
    assert advice.title == "pt-threads: 2 threads, not 8"
    assert '"num_threads": 2' in advice.do[0]
    assert found(threads.find, run_on(times("pt-threads", 1.0, threads=2))) is None
    best = [s for n, rate in ((1, 1.0), (8, 2.0)) for s in times("pt-threads", rate, threads=n)]
    assert found(threads.find, run_on(best)) is None


def test_threads_that_only_make_views() -> None:
    plain = times("safetensors-mmap", 2.0, **MMAP)
    advice = said(
        useless_threads.find,
        run_on([*plain, *times("safetensors-threads", 1.0, threads=2, **MMAP)]),
    )
    assert "enable_multithread_load" in advice.do[0]
    faster = times("safetensors-threads", 3.0, threads=2, **MMAP)
    assert found(useless_threads.find, run_on([*plain, *faster])) is None


def test_more_read_ahead() -> None:
    samples = [*times("safetensors-mmap", 0.5, **MMAP), *times("direct-ring", 2.0, ceiling)]
    advice = said(read_ahead.find, run_on(samples, blocks={"read_ahead_kb": 128}))
    assert advice.do == ("echo 16384 | sudo tee /sys/block/nvme0n1/queue/read_ahead_kb",)
    assert "reads 128 KiB ahead" in advice.seen
    assert advice.saving is not None
    assert advice.saving.at_most
    assert found(read_ahead.find, run_on(samples, blocks={"read_ahead_kb": 8192})) is None
    assert found(read_ahead.find, run_on(samples)) is None
    at_its_limit = [*times("safetensors-mmap", 1.9, **MMAP), *times("direct-ring", 2.0, ceiling)]
    assert found(read_ahead.find, run_on(at_its_limit, blocks={"read_ahead_kb": 128})) is None


@pytest.mark.parametrize(("state", "lines"), [("never", 2), ("madvise", 1), ("always", 1)])
def test_huge_pages(state: str, lines: int) -> None:
    samples = [
        *times("pt", 1.0),
        *times("owned-read", 1.0, ceiling, options={"pages": "4k"}),
        *times("owned-read", 2.0, ceiling, options={"pages": "huge"}),
    ]
    memory = {"transparent_huge_pages": {"enabled": state}}
    advice = said(huge_pages.find, run_on(samples, memory=memory))
    assert len(advice.do) == lines
    assert state in advice.seen
    equal = [replace(s, options={"pages": "huge"}) for s in samples[3:6]]
    assert found(huge_pages.find, run_on([*samples[:6], *equal])) is None
    assert found(huge_pages.find, run_on(samples[:6])) is None


def test_files_into_the_page_cache_before() -> None:
    samples = [
        *times("safetensors-mmap", 1.0, **MMAP),
        *times("safetensors-mmap", 4.0, cache="warm", **MMAP),
    ]
    advice = said(warm_up.find, run_on(samples, memory={"usable_bytes": 8 * GIB}))
    assert "8.00 GiB usable" in advice.cost
    assert advice.saving is not None
    assert advice.saving.seconds == pytest.approx(0.75 / 1.02)
    assert found(warm_up.find, run_on(samples, memory={"usable_bytes": 64 * MIB})) is None
    assert found(warm_up.find, run_on(samples[:3])) is None


def test_the_faster_of_two_storages() -> None:
    samples = [*times("pt", 2.0, storage=NVME), *times("pt", 0.2, storage=NET)]
    advice = said(storage.find, run_on(samples))
    assert advice.title == "Keep the model on nvme, not on net"
    assert advice.saving is not None
    assert advice.saving.seconds == pytest.approx(4.5 / 1.02)
    assert found(storage.find, run_on(samples[:3])) is None


def test_a_checkpoint_that_memory_does_not_hold() -> None:
    """C76."""
    half = load("pt", 1.0, cache="warm", state="mixed")
    half = replace(half, cache=replace(half.cache, resident_before=0.4))
    limits = [{"path": "/a", "bytes": 2 * GIB}]
    advice = said(page_cache.find, run_on([half], cgroup_memory_limits=limits))
    assert "40 % of the files were in memory" in advice.seen
    assert "2.00 GiB" in advice.seen
    assert advice.saving is None
    assert found(page_cache.find, run_on([load("pt", 1.0, cache="warm")])) is None


def test_little_shared_memory() -> None:
    """C73."""
    run = run_on(times("pt", 1.0), shared_memory={"total_bytes": 64 * MIB})
    assert "64.00 MiB" in said(shared_memory.find, run).seen
    wide = run_on(times("pt", 1.0), shared_memory={"total_bytes": 16 * GIB})
    assert found(shared_memory.find, wide) is None
    assert found(shared_memory.find, run_on(times("pt", 1.0))) is None


def test_the_disks_memory_node() -> None:
    nodes = {"numa_nodes": [{"node": 0}, {"node": 1}]}
    advice = said(numa.find, run_on(times("pt", 1.0), blocks={"numa_node": 1}, cpu=nodes))
    assert "numactl --cpunodebind=1 --membind=1 vllm serve" in advice.do[1]
    for blocks, cpu in (
        ({"numa_node": 0}, {"numa_nodes": [{"node": 0}]}),
        ({"numa_node": -1}, nodes),
        ({}, nodes),
    ):
        assert found(numa.find, run_on(times("pt", 1.0), blocks=blocks, cpu=cpu)) is None


def test_locked_memory() -> None:
    """C69: where the limit is smaller than what is copied, and pinned copies are faster."""
    to_device: dict[str, Any] = {
        "phase": "host_to_device",
        "device": "cuda:0",
        "storage": None,
        "cache": "none",
    }
    samples = [*times("pageable", 2.0, **to_device), *times("pinned-ring", 8.0, **to_device)]
    limits = {"memlock": {"soft": 8 * MIB}}
    advice = said(locked_memory.find, run_on(samples, process_limits=limits))
    assert advice.do[0] == "ulimit -l unlimited"
    assert "8.00 MiB" in advice.seen
    no_limit = {"memlock": {"soft": "unlimited"}}
    assert found(locked_memory.find, run_on(samples, process_limits=no_limit)) is None
    assert found(locked_memory.find, run_on(samples[:3], process_limits=limits)) is None


# All of it


def everything() -> Run:
    """A run with evidence for every kind."""
    half = load("pt", 1.0, cache="warm", state="mixed")
    to_device: dict[str, Any] = {
        "phase": "host_to_device",
        "device": "cuda:0",
        "storage": None,
        "cache": "none",
    }
    samples = [
        *times("safetensors-mmap", 0.5, **MMAP),
        *times("safetensors-mmap", 5.0, cache="warm", **MMAP),
        *times("safetensors-threads", 0.3, threads=2, **MMAP),
        *[s for n, r in ((2, 1.5), (8, 1.0)) for s in times("pt-threads", r, threads=n)],
        *times("pt", 0.1, storage=NET),
        *times("direct-ring", 2.0, ceiling),
        *times("owned-read", 1.0, ceiling, options={"pages": "4k"}),
        *times("owned-read", 2.0, ceiling, options={"pages": "huge"}),
        *times("pageable", 2.0, **to_device),
        *times("pinned", 8.0, **to_device),
        replace(half, case="half", cache=replace(half.cache, resident_before=0.4)),
    ]
    return run_on(
        samples,
        blocks={"read_ahead_kb": 128, "numa_node": 0},
        cpu={"numa_nodes": [{"node": 0}, {"node": 1}]},
        process_limits={"memlock": {"soft": MIB}},
        shared_memory={"total_bytes": 64 * MIB},
    )


def test_at_most_seven_and_those_first_that_save_most() -> None:
    run = everything()
    assert all(kind(see(run)) is not None for kind in KINDS)
    told = advise(run)
    assert len(told) == MOST < len(KINDS)
    saved = [one.saving.seconds for one in told if one.saving]
    assert saved == sorted(saved, reverse=True)
    assert len(saved) == MOST


def test_nothing_is_said_without_evidence() -> None:
    for run in (made_run(), made_run(*times("pt", 1.0)), replace(made_run(), host=None, plan=None)):
        assert advise(run) == []
    one_pass = [load("safetensors-mmap", 1.0, **MMAP), load("pt-threads", 9.0, threads=2)]
    assert advise(made_run(*one_pass)) == []


def test_nothing_is_concluded_from_a_smoke_run_or_a_tiny_one() -> None:
    run = everything()
    for change in ({"smoke": True}, {"size": 2 * MIB}):
        assert advise(replace(run, plan={**(run.plan or {}), **change})) == []


def test_a_saving_says_its_bounds_and_what_they_are() -> None:
    saved = Saving(seconds=1.2, of=3.4, low=0.9, high=1.5, n=3, kind="range")
    assert saving_words(saved) == "saves 1.20 s of 3.40 s (0.90 to 1.50, range of 3 passes)"
    assert saving_words(replace(saved, at_most=True)).startswith("saves at most 1.20 s")
    assert saving_words(None) == "what it saves wasn't measured"


# The host's company


def test_a_host_that_was_alone() -> None:
    assert flags(made_run(*times("pt", 1.0), *times("direct-ring", 2.0, ceiling))) == []


def test_signs_of_company() -> None:
    crowded = load("pt", 1.0)
    crowded = replace(crowded, cache=replace(crowded.cache, group_read_bytes=1_500_000_000))
    late = load("eager", 1.0)
    samples = [
        crowded,
        replace(late, status="failed", reason="the clocks disagree"),
        late,
        *times("safetensors-mmap", 1.0, **MMAP),
        *times("safetensors-mmap", 2.0, options={"twin": True}, **MMAP),
        ceiling("direct-ring", 1.0, 1),
        ceiling("direct-ring", 3.0, 2),
    ]
    found_flags = flags(made_run(*samples))
    assert len(found_flags) == 4
    assert "two clocks disagreed" in found_flags[0]
    assert "0.50 GB" in found_flags[1]
    assert "differed from itself by 100 %" in found_flags[2]
    assert "from 1.00 to 3.00 GB/s" in found_flags[3]


# The command


def coldload(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["advise", *map(str, args)])


def test_the_command_tells_each_with_what_to_type(tmp_path: Path) -> None:
    samples = [*times("safetensors-mmap", 1.0, **MMAP), *times("pt-threads", 2.0, threads=2)]
    folder = write_run(tmp_path, samples)
    done = coldload(folder)
    assert done.exit_code == 0, done.output
    assert (
        "1. Load with pt-threads, 2 threads instead of safetensors-mmap: saves 0.49 s"
        in done.output
    )
    assert "> --load-format pt --model-loader-extra-config" in done.output
    assert "Costs: " in done.output
    document = json.loads(coldload(folder, "--json").stdout)
    assert document["engine"] == "vllm-0.33"
    (finding,) = document["findings"]
    assert finding["saving"]["passes"] == 3
    assert finding["saving"]["bounds"] == "range"
    older = json.loads(coldload(folder, "--json", "--for", "vllm-0.9.2").stdout)
    assert older["findings"] == []


def test_what_it_comes_to_in_a_start_of_the_engine(tmp_path: Path) -> None:
    samples = [*times("safetensors-mmap", 1.0, **MMAP), *times("pt-threads", 2.0, threads=2)]
    folder = write_run(tmp_path / "run", samples)
    log = tmp_path / "start.log"
    log.write_text(
        "INFO 11-30 10:00:00 [api_server.py:1] vLLM API server version 0.10.0\n"
        "INFO 11-30 10:00:30 [default_loader.py:262] Loading weights took 20.00 seconds\n"
        "INFO 11-30 10:01:40 [api_server.py:2] Application startup complete.\n"
    )
    document = json.loads(coldload(folder, "--explain", log, "--json").stdout)
    assert document["start"]["weights"] == 20.0
    assert document["findings"][0]["in_start"] == pytest.approx(10.0)
    assert "The same share of that start: 10.0 s" in coldload(folder, "--explain", log).output
    log.write_text("nothing of the kind\n")
    assert coldload(folder, "--explain", log).exit_code == 3
    assert coldload(folder, "--explain", tmp_path / "none").exit_code == 2


def test_the_bound_of_a_start() -> None:
    assert "more than 20 %" in Start(weights=20.0, wall=100.0).bound()
    assert "20.0 s: no advice" in Start(weights=20.0, wall=None).bound()
    assert "no time for the weights" in Start(weights=None, wall=5.0).bound()


def test_the_first_of_a_run_stand_under_its_table() -> None:
    lines = first_words(everything())
    assert len(lines) == 4
    assert all(line.startswith("To do: ") for line in lines[:3])
    assert lines[3] == "4 more, and what each costs: coldload advise runs/made-up"
    assert first_words(made_run(*times("pt", 1.0))) == []


def test_nothing_to_advise_says_what_may_help(tmp_path: Path) -> None:
    done = coldload(write_run(tmp_path, times("pt", 1.0)))
    assert done.exit_code == 0
    assert "--passes=8" in done.output


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (["nowhere"], 2, "No such file"),
        (["empty"], 3, "nothing was measured"),
        (["run:attic"], 2, "no storage is called"),
        (["run", "--for", "sglang"], 2, "expected one such as vllm-0.33"),
        (["run", "--for", "vllm-0.99"], 2, "ends at vllm-0.33"),
    ],
)
def test_what_cannot_be_advised_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), times("pt", 1.0))
    write_run(Path("empty"), [unmeasured("pt", "failed", "SIGBUS")])
    done = coldload(*args)
    assert done.exit_code == code
    assert expected in done.output
    again = coldload(*args, "--json")
    assert again.exit_code == code
    assert expected in json.loads(again.stdout)["error"]


def test_names_of_strangers_are_only_words(tmp_path: Path) -> None:
    odd = replace(NET, label=STRANGER)
    samples = [*golden_samples(), *times("pt", 9.0, storage=odd), *times("pt", 0.01, storage=NVME)]
    done = coldload(write_run(tmp_path, samples))
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    assert "odd[red]" in done.output
