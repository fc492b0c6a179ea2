"""The assemble phase: its cases, that a wrong result fails its sample, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_phases import Runner
from tiny_assembly import planned, written

from bench.ground.prepare import prepare
from bench.phases import parameters
from bench.phases.assemble import ASSEMBLE, measure
from bench.phases.contract import Asked
from bench.record.records import CacheRecord, Run, Sample, Seconds, StorageRecord
from bench.settings import parse_settings
from bench.words.assembly_seen import assembled
from loaders.assembly import stock as stock_module
from loaders.checkpoint.read import open_checkpoint


def asked(**given: Any) -> Asked:
    settings = parse_settings(given, smoke=False, seed=0)
    return Asked(settings=settings, labels=["disk"], cores=2, device="cpu")


def into_parameters(**given: Any) -> list[Any]:
    return [one for one in ASSEMBLE.cases(asked(**given)) if one.options["into"] == "parameters"]


def test_every_way_cold_and_warm_whole_unless_tp_is_given() -> None:
    cases = into_parameters()
    assert {one.layout for one in cases} == {"tp1"}
    assert {one.cache for one in cases} == {"cold", "warm"}
    assert {one.loader for one in cases} == {"stock", "overlapped", "staged"}
    assert {one.options.get("by") for one in cases} == {None, *parameters.STAGED}
    assert {one.layout for one in into_parameters(tp="8")} == {"tp8"}
    assert {one.layout for one in into_parameters(tp="4", ep=True)} == {"tp4-ep"}
    assert {one.cache for one in into_parameters(cache="warm,50%")} == {"warm"}


def test_full_stages_every_loader_of_the_format() -> None:
    names = {one.options.get("by") for one in into_parameters(full=True)}
    assert names > {None, *parameters.STAGED}
    assert "dummy" not in names


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory):
    work = tmp_path_factory.mktemp("assemble")
    written(work / "model")
    return prepare(work / "model", work, "tiny")


def sampled(ready: Any, case: Any) -> dict[str, Any]:
    runner = Runner()
    measure(
        runner,
        probe=None,
        way=case.loader,
        options=dict(case.options),
        threads=2,
        device="cpu",
        layout=case.layout,
        cores=2,
        touch_bytes=0,
        manifest_path=str(ready.manifest_path),
        reference_path=str(ready.reference_path),
    )
    return runner.heard


@pytest.mark.parametrize("tp", ["1", "2"])
def test_every_sample_is_proved_and_its_stages_add_up(ready, tp: str) -> None:
    for case in into_parameters(tp=tp, cache="warm"):
        assert ASSEMBLE.refuses(case, ready) is None
        heard = sampled(ready, case)
        assert heard["faults"] == []
        kept = sum(one.nbytes for one in planned(ready.checkpoint, int(tp)))
        assert heard["bytes"] == kept <= ASSEMBLE.memory_bytes(case, ready)
        stages = {name: found for name, found in heard["seconds"].items() if name != "total"}
        assert sum(stages.values()) == pytest.approx(heard["seconds"]["total"])
        assert ("slice" in stages) == (case.loader == "staged")


def test_a_parameter_with_a_wrong_byte_fails_its_sample(
    ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(*given: Any) -> Any:
        done = stock_module.stock(*given)
        done.targets[1].view(-1)[3] = 1
        return done

    monkeypatch.setattr(parameters, "stock", off)
    case = next(one for one in into_parameters() if one.loader == "stock")
    assert "wrong bytes" in sampled(ready, case)["faults"][0]


def test_what_cannot_be_divided_is_refused_with_the_reason(ready, tmp_path: Path) -> None:
    case = into_parameters(tp="3")[0]
    assert "3" in str(ASSEMBLE.refuses(case, ready))
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in ready.checkpoint.files:
        (bare / file.name).symlink_to(file.path)
    without = SimpleNamespace(checkpoint=open_checkpoint(str(bare)))
    assert "config.json" in str(ASSEMBLE.refuses(into_parameters()[0], without))


def sample(loader: str, number: int, total: float, **stages: float) -> Sample:
    by = {"by": stages.pop("by")} if "by" in stages else {}
    return Sample(
        case=f"assemble/{loader}/{by}",
        phase="assemble",
        loader=loader,
        options={"into": "parameters", **by},
        model="m",
        size=1 << 30,
        dtype="bfloat16",
        storage=StorageRecord(label="nvme"),
        pass_number=number,
        status="ok",
        bytes=10**9,
        seconds=Seconds(total=total, **stages),
        ownership="owned",
        cache=CacheRecord(requested="cold", state="cold"),
    )


def test_what_is_said_is_paired_by_pass_and_bound_by_the_lowest_slowest_stage() -> None:
    samples = []
    for number, drift in enumerate((1.0, 2.0, 3.0), 1):
        samples += [
            sample("overlapped", number, 1.2 * drift),
            sample("stock", number, 6.0 * drift),
            sample("staged", number, 3.0 * drift, by="a", read=2.0 * drift, slice=1.0 * drift),
            sample("staged", number, 1.6 * drift, by="b", read=1.0 * drift, slice=0.6 * drift),
        ]
    run = Run(path=Path("records.jsonl"), plan={}, host={}, samples=samples)
    (said,) = assembled(run)
    assert "takes 1.20 x (1.20 to 1.20, range of 3)" in said
    assert "(read of b, 2.00 s)" in said
    assert "b stage by stage takes 3.20 s" in said
    assert "5.00 x (5.00 to 5.00, range of 3) as fast as the engine's way" in said
    assert "cold on nvme" in said
    assert "tp1" in said
    smoke = Run(path=Path("records.jsonl"), plan={"smoke": True}, host={}, samples=samples)
    assert assembled(smoke) == []
