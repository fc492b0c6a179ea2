"""Phases after reading: their cases, and that a wrong result fails its sample."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.phases import host_to_device, slicing
from bench.phases.contract import Asked
from bench.phases.table import PHASES
from bench.phases.task import Task
from bench.phases.tensors import differing, load, pick, picked_bytes
from bench.settings import parse_settings
from loaders.checkpoint.read import open_checkpoint
from loaders.device.discover import open_device
from loaders.slicing.execute import cut_stock
from loaders.slicing.plan import Parameter, Piece
from loaders.transfer import ways
from loaders.transfer.values import Options, Transfer
from tests.tiny_bench import MIB, make_tiny
from tests.tiny_slicing import manifest_of


class Runner:
    """The other end of a child's channel: always ready to go on."""

    def __init__(self) -> None:
        self.heard: dict[str, Any] = {}

    def send(self, message: dict[str, Any]) -> None:
        self.heard.update(message)

    def await_awake(self, seconds: float) -> None:
        return

    def receive(self) -> dict[str, Any]:
        return {"go": True}


def asked(**given: Any) -> Asked:
    settings = parse_settings(given, smoke=False, seed=0)
    return Asked(settings=settings, labels=["disk"], cores=2, device="cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("phases") / "model"
    return open_checkpoint(str(make_tiny(folder, size=4 * MIB)))


def test_every_phase_has_its_bench_file_and_cases_of_its_own_name() -> None:
    for name, phase in PHASES.items():
        path = Path(slicing.__file__).parents[1] / f"bench_{name}.py"
        assert f"def bench_{name}(measure, case)" in path.read_text()
        cases = phase.cases(asked())
        assert cases or name in {"stage", "ranks"}  # measured only where they are asked for
        assert {case.phase for case in cases} <= {name}
        assert len({case.test_id for case in cases}) == len(cases)


def test_the_mix_is_cut_at_whole_layers(checkpoint) -> None:
    layers = {0: 0, 1: 0}
    for spec in checkpoint.tensors:
        for number in layers:
            if f"layers.{number}." in spec.name:
                layers[number] += spec.nbytes
    assert layers[0]
    one = pick(checkpoint, 1)
    assert picked_bytes(one) == layers[0]
    assert pick(checkpoint, checkpoint.tensor_bytes) == list(checkpoint.tensors)


def test_without_layers_the_mix_is_what_fits() -> None:
    made = manifest_of(dict.fromkeys("abc", ((100,), "int8")))
    assert [spec.name for spec in pick(made, 250)] == ["a", "b"]
    assert [spec.name for spec in pick(made, 1)] == ["a"]


def test_tensors_are_read_as_they_are(checkpoint) -> None:
    from safetensors.torch import load_file

    expected = {
        name: tensor for file in checkpoint.files for name, tensor in load_file(file.path).items()
    }
    found = load(checkpoint, checkpoint.tensors)
    assert differing(found.items(), expected) == []
    assert differing([("w", torch.ones(3))], {"w": torch.zeros(3)}) == ["w: wrong bytes"]
    assert "expected" in differing([("w", torch.ones(3))], {"w": torch.zeros(4)})[0]


@given(st.lists(st.integers(1, 40), min_size=1), st.lists(st.integers(0, 90)))
def test_the_bare_copy_moves_as_many_bytes(sources: list[int], sizes: list[int]) -> None:
    come_from = {
        f"s{n}": torch.zeros(size, dtype=torch.uint8).numpy() for n, size in enumerate(sources)
    }
    copies = slicing.as_many_bytes(come_from, sizes)
    assert sum(copy.nbytes for copy in copies) == sum(sizes)
    assert all(copy.source_end <= len(come_from[copy.tensor]) for copy in copies)


def parameter(dim: int, kind: str = "attention") -> Parameter:
    piece = Piece(tensor="w", dim=dim, start=0, stop=1, shape=(1, 1), at=(0, 0), replicas=1)
    return Parameter(name="p", kind=kind, dtype="int8", shape=(1, 1), pieces=(piece,))


def test_a_parameter_goes_by_its_rule() -> None:
    assert slicing.rule_of(parameter(0)) == "column"
    assert slicing.rule_of(parameter(1)) == "row"
    assert slicing.rule_of(parameter(1, "experts")) == "experts"
    assert slicing.rule_of(parameter(0, "embedding")) == "vocab"


@pytest.mark.parametrize("way", slicing.IN_MEMORY)
@pytest.mark.parametrize("rule", ["column", "row", "vocab"])
def test_slicing_in_memory_is_proved(checkpoint, way: str, rule: str) -> None:
    runner = Runner()
    parameters = slicing.all_ranks(checkpoint, "tp2", rule)
    slicing.in_memory(runner, way, checkpoint, parameters, 2)
    assert runner.heard["faults"] == []
    assert runner.heard["bytes"] == sum(one.nbytes for one in parameters)
    assert (runner.heard["unproved"] is None) == (way != "copy")


@pytest.mark.parametrize("way", slicing.FROM_FILES)
def test_slicing_from_files_is_proved_and_tells_what_it_fetched(checkpoint, way: str) -> None:
    runner = Runner()
    parameters = slicing.planned(checkpoint, "tp2")
    slicing.from_files(runner, way, checkpoint, parameters, 2)
    assert runner.heard["faults"] == []
    if way == "read-slices":
        details = runner.heard["details"]
        column = details["by_rule"]["column"]
        assert column["fetched_bytes"] <= 1.05 * column["kept_bytes"]
        assert details["fetched_bytes"] < checkpoint.file_bytes


def test_a_cut_that_is_off_fails_its_sample(checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(sources, parameters, targets, **options) -> None:
        cut_stock(sources, parameters, targets)
        targets[0].view(-1)[0] += 1

    monkeypatch.setattr(slicing, "cut", off)
    runner = Runner()
    parameters = slicing.all_ranks(checkpoint, "tp2", "row")
    slicing.in_memory(runner, "ours", checkpoint, parameters, 2)
    assert runner.heard["faults"][0].endswith("wrong bytes")


def test_what_cannot_be_cut_is_a_skip_with_both_numbers(checkpoint, tmp_path: Path) -> None:
    class Ready:
        pass

    ready = Ready()
    ready.checkpoint = checkpoint
    case = next(one for one in slicing.cases(asked(tp="7")) if one.options.get("rule") == "row")
    assert "7" in str(slicing.refuses(case, ready))
    case = next(one for one in slicing.cases(asked(tp="2")) if one.options.get("rule") == "experts")
    assert "nothing in this model" in str(slicing.refuses(case, ready))


def task(way: str) -> Task:
    return Task(
        way=way,
        options={},
        threads=2,
        device="cpu",
        layout="tp1",
        cores=2,
        touch_bytes=0,
        manifest_path="",
        reference_path="",
    )


@pytest.mark.parametrize("way", host_to_device.IN_MEMORY)
def test_transfers_are_proved(checkpoint, way: str) -> None:
    runner = Runner()
    host = list(load(checkpoint, checkpoint.tensors).items())
    host_to_device.transfer(runner, task(way), host, None)
    assert runner.heard["faults"] == []
    assert runner.heard["details"]["copies_are"] == "memory copy"
    assert runner.heard["bytes"] == checkpoint.tensor_bytes


def test_a_transfer_that_lost_bytes_fails_its_sample(
    checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lossy(device, host, options) -> Transfer:
        done = ways.pageable(device, host, options)
        done.tensors[0][1].view(-1)[0] += 1
        return done

    monkeypatch.setattr(host_to_device, "WAYS", {"pageable": lossy})
    runner = Runner()
    host = list(load(checkpoint, checkpoint.tensors).items())
    host_to_device.transfer(runner, task("pageable"), host, None)
    assert "wrong bytes" in runner.heard["faults"][0]


@pytest.mark.parametrize("size", [8, 4096, 1 << 20])
def test_the_curve_has_tensors_of_one_size(size: int) -> None:
    made = host_to_device.of_one_size(size)
    assert {tensor.nbytes for _, tensor in made} == {size}
    assert len(made) <= host_to_device.MOST


@pytest.mark.parametrize(("host", "device"), [(0.1, 0.2), (0.2, 0.1)])
def test_clocks_that_do_not_tell_the_same_are_a_fault(host: float, device: float) -> None:
    done = ways.pageable(open_device("cpu"), [("w", torch.ones(8))], Options())
    seconds = dataclasses.replace(done.seconds, transfer=host, device=device)
    done = dataclasses.replace(done, seconds=seconds)
    assert "events tell" in host_to_device.wrong(done, [("w", torch.ones(8))])[0]


def test_several_devices_get_the_same_bytes_at_once(checkpoint, monkeypatch) -> None:
    monkeypatch.setattr(host_to_device, "alike", lambda device: ["cpu", "cpu"])
    made = [case for case in host_to_device.cases(asked()) if "devices" in case.options]
    assert len(made) == 2 * len(host_to_device.TOGETHER)
    runner = Runner()
    together = dataclasses.replace(task("pageable"), options={"devices": 2, "bound": False})
    host = list(load(checkpoint, checkpoint.tensors).items())
    host_to_device.to_all(runner, together, host, None)
    assert runner.heard["faults"] == []
    assert runner.heard["bytes"] == 2 * checkpoint.tensor_bytes
    assert [one["device"] for one in runner.heard["details"]["each"]] == ["cpu", "cpu"]
