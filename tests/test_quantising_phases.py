"""The phases on quantised weights: what they measure is proved, and what is wrong fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.ground.quantised_copy import FORM, wanted
from bench.phases import layout, quantise, w8a8
from bench.phases.contract import Asked
from bench.phases.quantising import no_weights, resident, weights_of
from bench.phases.task import Task
from bench.settings import parse_settings
from loaders.device.discover import open_device
from loaders.quantise.fast import Quantiser
from loaders.quantise.schemes import SCHEMES, scheme
from loaders.w8a8 import ways
from tests.test_phases import Runner
from tests.tiny_bench import MIB
from tests.tiny_w8a8 import Pair, both

CPU = open_device("cpu")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return both(tmp_path_factory.mktemp("phases"), size=4 * MIB)


@pytest.fixture(scope="module")
def weights(pair: Pair) -> dict[str, torch.Tensor]:
    return resident(pair[0], torch.device("cpu"))


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes seconds and is tested with the quantisers."""
    monkeypatch.setattr("loaders.quantise.kernels.no_compiler", lambda device: "not in tests")


def asked(device: str = "cpu", **given: Any) -> Asked:
    settings = parse_settings(given, smoke=False, seed=0)
    return Asked(settings=settings, labels=["disk"], cores=2, device=device)


class Ready:
    def __init__(self, checkpoint) -> None:
        self.checkpoint = checkpoint


@pytest.mark.parametrize("way", ["reference", "fast", "floor", quantise.BLOCKS])
@pytest.mark.parametrize("name", quantise.DEFAULT)
def test_quantising_is_proved(weights, way: str, name: str) -> None:
    runner = Runner()
    quantise.quantise(runner, way, weights, scheme(name), CPU)
    heard = runner.heard
    assert heard["faults"] == []
    assert heard["bytes"] == sum(one.nbytes for one in weights.values())
    assert (heard["unproved"] is None) == (way in {"fast", quantise.BLOCKS})
    if way != "floor":
        quality = heard["details"]["quality"]
        assert 0 < quality["relative_error"] < 0.05
        assert quality["worst_error"] >= quality["relative_error"] * 0.99
        assert quality["worst_tensor"] in weights
    if way == "fast":
        assert heard["details"]["compile_seconds"] == 0
        assert heard["details"]["how"] == "row blocks"
        assert heard["details"]["not_compiled"] == "not in tests"


def test_every_scheme_is_measured_with_full() -> None:
    plain = {case.options["scheme"] for case in quantise.cases(asked())}
    assert plain == {*quantise.DEFAULT, quantise.NF4}
    full = {case.options["scheme"] for case in quantise.cases(asked(full=True))}
    assert full == {*SCHEMES, quantise.NF4}


def test_a_value_that_is_off_fails_its_sample(weights, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Quantiser.__call__

    def off(self, weight, out, *, name="weight"):
        done = right(self, weight, out, name=name)
        out.values.view(-1)[-1] ^= 1
        return done

    monkeypatch.setattr(Quantiser, "__call__", off)
    runner = Runner()
    quantise.quantise(runner, "fast", weights, scheme("int8-channel"), CPU)
    assert "wrong bytes" in runner.heard["faults"][0]


def test_the_floor_reads_each_byte_once_and_writes_each_once() -> None:
    source, target = torch.ones(64, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.int8)
    quantise.floor([(source, target)])
    raw = source.view(torch.uint8).reshape(-1)
    assert torch.equal(target.view(torch.uint8).reshape(-1), raw[: target.numel()])


def test_bitsandbytes_is_skipped_with_what_to_do(pair: Pair, monkeypatch) -> None:
    found = {case.loader for case in quantise.cases(asked())}
    assert quantise.BNB in found
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reasons = {
        (case.loader, case.options["scheme"]): quantise.refuses(case, Ready(pair[0]))
        for case in quantise.cases(asked())
    }
    assert "pip install bitsandbytes" in str(reasons[quantise.BNB, quantise.BNB_INT8])
    assert "pip install bitsandbytes" in str(reasons["floor", quantise.NF4])
    assert reasons["fast", "int8-channel"] is None


def test_what_is_quantised_already_is_refused_with_the_reason(pair: Pair) -> None:
    case = quantise.cases(asked())[0]
    assert "quantised already" in str(quantise.refuses(case, Ready(pair[1])))
    assert "quantised already" in str(no_weights(pair[1]))


def test_weights_are_the_real_mix_and_one_at_least(pair: Pair) -> None:
    every = weights_of(pair[0])
    assert all(len(spec.shape) == 2 and "proj" in spec.name for spec in every)
    assert len(weights_of(pair[0], 1)) == 1


@pytest.mark.parametrize("way", ["copy", "transpose", layout.PLAIN_NZ, "view"])
def test_layouts_are_proved(weights, way: str) -> None:
    runner = Runner()
    values = layout.int8_weights(weights, CPU)
    layout.lay_out(runner, way, values, CPU)
    assert runner.heard["faults"] == []
    moved = sum(one.nbytes for one in values.values())
    assert runner.heard["bytes"] == (0 if way == "view" else moved)
    assert ("plain-torch" in runner.heard["details"]["how"]) == (way == layout.PLAIN_NZ)


def test_off_an_npu_the_blocks_are_called_plain_torch() -> None:
    assert layout.PLAIN_NZ in {case.loader for case in layout.cases(asked())}
    assert "nz" in {case.loader for case in layout.cases(asked(device="npu:0"))}


def test_a_layout_that_is_off_fails_its_sample(weights, monkeypatch) -> None:
    monkeypatch.setattr(layout, "laid_out", lambda values, name, out: out)  # zeros
    runner = Runner()
    layout.lay_out(runner, "transpose", layout.int8_weights(weights, CPU), CPU)
    assert "wrong bytes" in runner.heard["faults"][0]


def task(checkpoint, way: str, tmp_path: Path, into: str = "nz") -> Task:
    import pickle

    path = tmp_path / f"{way}.manifest"
    path.write_bytes(pickle.dumps(checkpoint))
    return Task(
        way=way,
        options={"into": into},
        threads=2,
        device="cpu",
        layout="tp2",
        cores=2,
        touch_bytes=0,
        manifest_path=str(path),
        reference_path="",
    )


def assembled(pair: Pair, way: str, tmp_path: Path, into: str = "nz") -> dict[str, Any]:
    source = pair[way == "offline"]
    runner = Runner()
    parameters = w8a8.planned(source, "tp2")
    w8a8.assemble(runner, task(source, way, tmp_path, into), parameters)
    return runner.heard


@pytest.mark.parametrize("into", w8a8.LAYOUTS)
def test_both_ways_are_proved_and_record_one_digest(pair: Pair, tmp_path: Path, into: str) -> None:
    heard = {way: assembled(pair, way, tmp_path, into) for way in w8a8.WAYS}
    for way, one in heard.items():
        assert one["faults"] == []
        assert one["unproved"] is None
        stages = {name for name, value in one["seconds"].items() if value}
        assert {"read", "slice", "layout", "total"} <= stages
        assert ("quantise" in one["seconds"]) == (way == "online")
    details = [heard[way]["details"] for way in w8a8.WAYS]
    assert len({one["state_digest"] for one in details}) == 1
    assert len({heard[way]["bytes"] for way in w8a8.WAYS}) == 1
    assert details[0]["fetched_bytes"] > details[1]["fetched_bytes"]


def test_other_weights_have_another_digest_and_fail(
    pair: Pair, tmp_path: Path, monkeypatch
) -> None:
    right = assembled(pair, "online", tmp_path)["details"]["state_digest"]
    original = ways.fill_within_rows

    def slice_alone(windows, checkpoint, parameter, target, stamp) -> None:
        original(windows, checkpoint, parameter, target, stamp)
        target[:, -1] = 0  # scales of the rank's part alone, as engines have them online

    monkeypatch.setattr(ways, "fill_within_rows", slice_alone)
    heard = assembled(pair, "online", tmp_path)
    assert heard["faults"]
    assert heard["details"]["state_digest"] != right


def test_the_offline_way_reads_the_quantised_form() -> None:
    forms = {case.loader: w8a8.form(case) for case in w8a8.cases(asked())}
    assert forms == {"online": None, "offline": FORM, "restored": "restored-tp8-int8-nz"}


def test_w8a8_is_measured_cold_and_warm_into_the_layout_of_the_device() -> None:
    found = w8a8.cases(asked())
    assert {(case.loader, case.cache) for case in found} == {
        (way, cache) for way in (*w8a8.WAYS, "restored") for cache in ("cold", "warm")
    }
    assert {case.options["into"] for case in found} == {"nz"}
    assert {case.options["into"] for case in w8a8.cases(asked(device="cuda:0"))} == {"view"}
    assert len(w8a8.cases(asked(full=True))) == 3 * len(found)


def test_refusals_say_why(pair: Pair) -> None:
    online, offline = w8a8.cases(asked(tp="2"))[:2]
    assert w8a8.refuses(online, Ready(pair[0])) is None
    assert w8a8.refuses(offline, Ready(pair[1])) is None
    assert "quantised already" in str(w8a8.refuses(online, Ready(pair[1])))
    assert "bench_w8a8.py" in str(w8a8.refuses(offline, Ready(pair[0])))
    assert "7" in str(w8a8.refuses(w8a8.cases(asked(tp="7"))[0], Ready(pair[0])))


def test_a_copy_of_a_real_model_is_made_only_where_it_was_named() -> None:
    mine = w8a8.cases(asked())
    reading = [case for case in mine if case.loader == "online"]
    from bench.record.cases import Case

    disk = Case(phase="disk_to_host", loader="parallel", storage="disk", cache="cold")
    assert wanted(mine, "disk", real=True)
    assert not wanted(mine, "other", real=True)
    assert not wanted(reading, "disk", real=False)
    assert not wanted([*mine, disk], "disk", real=True)
    assert wanted([*mine, disk], "disk", real=False)
