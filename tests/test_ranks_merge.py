"""The runs of several nodes as one; no rank is started here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.cli import main
from bench.ranks.merge import merged
from bench.ranks.show import summary
from bench.record.records import CacheRecord, RecordsError, Run, Sample, Seconds, Writer, read_run


def rank(number: int, node: int, done_at: float, **given: Any) -> dict[str, Any]:
    stamps = dict.fromkeys(("open", "allocate", "read", "exchange", "transfer"), 0.1)
    return {
        "rank": number, "host": f"node{node}", "pid": 10 + number, "started_at": 0.001,
        "done_at": done_at, "total": done_at, "bytes": 50, "asked": None, "fetched": 30,
        "cpu_seconds": 1.0, "peak_rss_bytes": 5, **stamps, **given,
    }  # fmt: skip


def sample(node: int, way: str, ranks: list[dict[str, Any]], **given: Any) -> Sample:
    made = Sample(
        case=f"ranks/{way}/ranks=4/m/1MiB/bf16/t2/cold/cpu/tp4/disk{node}",
        phase="ranks", loader=way, options={"ranks": 4}, model="m", size=200, dtype="bf16",
        layout="tp4", pass_number=1, status="ok", bytes=sum(one["bytes"] for one in ranks),
        seconds=Seconds(read=1.0, total=1.0), verified=True,
        cache=CacheRecord(
            requested="cold", resident_before=0.0, device_read_bytes=60, state="cold"
        ),
        details={
            "ranks": ranks, "world": 4, "nodes": 2, "node": node, "collective": "gloo",
            "file_bytes": 100, "due_bytes": 60, "first_done": 1.0, "last_done": 2.0,
        },
    )  # fmt: skip
    return replace(made, **given)


def run_of(tmp_path: Path, node: int, samples: list[Sample], **plan: Any) -> Run:
    folder = tmp_path / f"node{node}-{len(list(tmp_path.iterdir()))}"
    writer = Writer(folder)
    cases = sorted({one.case for one in samples})
    writer.append(
        {
            "kind": "plan", "schema": 1, "model": "m", "size": 200, "passes": 1, "seed": 0,
            "cases": cases, "ranks": {"world": 4, "nodes": 2, "node": node}, **plan,
        }
    )  # fmt: skip
    writer.append({"kind": "host", "schema": 1, "cores": 2, "host": {"hostname": f"node{node}"}})
    for one in samples:
        writer.append(one.to_json())
    writer.close()
    return read_run(folder)


@pytest.fixture
def two(tmp_path: Path) -> list[Run]:
    return [
        run_of(tmp_path, 0, [sample(0, "scatter", [rank(0, 0, 1.0), rank(1, 0, 2.5)])]),
        run_of(tmp_path, 1, [sample(1, "scatter", [rank(2, 1, 0.5), rank(3, 1, 2.0)])]),
    ]


def merge(runs: list[Run], tmp_path: Path) -> tuple[Sample, ...]:
    writer = Writer(tmp_path / "merged")
    try:
        return merged(runs, writer)
    finally:
        writer.close()


@pytest.mark.parametrize("turned", [False, True])
def test_two_nodes_are_one_sample(two: list[Run], tmp_path: Path, turned: bool) -> None:
    (one,) = merge(two[::-1] if turned else two, tmp_path)
    assert one.status == "ok"
    assert [member["rank"] for member in one.details["ranks"]] == [0, 1, 2, 3]
    assert (one.details["first_done"], one.details["last_done"]) == (0.5, 2.5)
    assert one.seconds.total == 2.5
    assert one.bytes == 200
    assert one.cache.device_read_bytes == 120
    assert one.cache.state == "cold"
    assert one.verified is True
    again = read_run(tmp_path / "merged")
    assert again.samples == (one,)
    assert not again.missing()
    assert again.host is not None
    assert [host["hostname"] for host in again.host["nodes"]] == ["node0", "node1"]
    (row,) = summary([one])
    assert row["rate"] == pytest.approx(200 / 2.5 / 1e9)
    assert row["fetched"] == pytest.approx(1.2)
    assert row["group_fetched"] is None


def test_a_node_that_failed_fails_the_case_and_keeps_the_others(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, 0, [sample(0, "scatter", [rank(0, 0, 1.0), rank(1, 0, 2.5)])]),
        run_of(
            tmp_path, 1,
            [sample(1, "scatter", [rank(2, 1, 0.5)], status="failed", bytes=None, verified=None,
                    reason="rank 3 (node1, pid 13) ended by SIGKILL")],
        ),
    ]  # fmt: skip
    (one,) = merge(runs, tmp_path)
    assert one.status == "failed"
    assert "node 1: rank 3 (node1, pid 13) ended by SIGKILL" in str(one.reason)
    assert "no record of rank 3" in str(one.reason)
    assert [member["rank"] for member in one.details["ranks"]] == [0, 1, 2]
    assert one.seconds.total is None
    assert summary([one]) == []


def test_a_node_whose_run_is_absent_is_named(two: list[Run], tmp_path: Path) -> None:
    (one,) = merge(two[:1], tmp_path)
    assert one.status == "failed"
    assert "no run of node 1 was given" in str(one.reason)
    assert "no record of rank 2, 3" in str(one.reason)


def test_a_mixed_node_makes_a_mixed_sample(two: list[Run], tmp_path: Path) -> None:
    (other,) = two[1].samples
    half = replace(other, cache=replace(other.cache, state="mixed", resident_before=0.4))
    (one,) = merge([two[0], run_of(tmp_path, 1, [half])], tmp_path)
    assert one.cache.state == "mixed"
    assert one.cache.resident_before == 0.4


def test_runs_of_two_measurements_are_refused(two: list[Run], tmp_path: Path) -> None:
    (other,) = two[1].samples
    strange = run_of(tmp_path, 1, [other], seed=7)
    with pytest.raises(RecordsError, match="its seed isn't that of"):
        merge([two[0], strange], tmp_path)


def test_one_node_twice_is_refused(two: list[Run], tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="two of the runs are of one node"):
        merge([two[0], two[0]], tmp_path)


def test_another_kind_of_run_is_refused(two: list[Run], tmp_path: Path) -> None:
    plain = replace(two[1], plan={"cases": [], "passes": 1})
    with pytest.raises(RecordsError, match="no run of coldload ranks"):
        merge([two[0], plain], tmp_path)


def test_the_command_merges(two: list[Run], tmp_path: Path) -> None:
    paths = [str(run.path.parent) for run in two]
    found = CliRunner().invoke(
        main, ["ranks", "--merge", *paths, "-o", str(tmp_path / "out"), "--json"]
    )
    document = json.loads(found.stdout)
    assert found.exit_code == 0, found.output
    assert document["ok"] is True
    assert document["ways"][0]["ranks"] == 4
    shown = CliRunner().invoke(main, ["ranks", "--merge", *paths, "-o", str(tmp_path / "out2")])
    assert "scatter, rank by rank" in shown.stdout
    assert "3 node1" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--merge", "RUN"], "new folder with -o"),
        (["--merge", "absent", "-o", "OUT"], "No such file"),
        (["--merge", "RUN", "-o", "RUN"], "holds a run already"),
        (["absent"], "absent"),
        (["a", "b"], "found 2"),
        (["MODEL", "--nnodes", "2"], "--rdzv-endpoint"),
        (["MODEL", "--rdzv-endpoint", "h:1"], "--rdzv-endpoint"),
        (["MODEL", "--nnodes", "2", "--rdzv-endpoint", "h"], "expected HOST:PORT"),
        (["MODEL", "--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "h:1"], "--node-rank=2"),
        (["MODEL", "--device", "tpu"], "--device=tpu"),
        (["MODEL", "--device", "cuda"], "cuda"),
        (["MODEL", "-o", "x"], "--run-dir"),
        (["MODEL", "--nproc", "3"], "can't be divided"),
        (["s3://bucket/model"], "expected a folder"),
        (["MODEL", "--run-dir", "RUN"], "holds a run already"),
    ],
)
def test_what_cant_be_done_is_refused(
    arguments: list[str], said: str, two: list[Run], tmp_path: Path
) -> None:
    from tests.tiny_ranks import tiny_model

    tiny_model(tmp_path / "model")
    names = {
        "RUN": str(two[0].path.parent), "OUT": str(tmp_path / "o"), "MODEL": str(tmp_path / "model")
    }  # fmt: skip
    given = [names.get(one, one) for one in arguments]
    found = CliRunner().invoke(main, ["ranks", *given, "--json"])
    assert found.exit_code == 2, found.output
    document = json.loads(found.stdout)
    assert document["ok"] is False
    assert said in document["error"]
