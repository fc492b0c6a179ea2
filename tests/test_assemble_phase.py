"""The assemble phase: its cases, that a wrong result fails its sample, and what is said of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from test_phases import Runner
from tiny_assembly import CONFIG, HIDDEN, VOCAB, planned, shapes, written
from tiny_plans import latent

from bench.ground.prepare import prepare
from bench.phases import parameters
from bench.phases.assemble import ASSEMBLE, measure
from bench.phases.contract import Asked
from bench.settings import parse_settings
from loaders.assembly import stock as stock_module
from loaders.checkpoint.read import open_checkpoint


def asked(**given: Any) -> Asked:
    settings = parse_settings(given, smoke=False, seed=0)
    return Asked(settings=settings, labels=["disk"], cores=2, device="cpu")


def into_parameters(**given: Any) -> list[Any]:
    """Also what is read for parameters and no further."""
    return [one for one in ASSEMBLE.cases(asked(**given)) if one.options["into"] != "tensors"]


def loaders_of(**given: Any) -> set[str | None]:
    return {one.options.get("by") for one in into_parameters(**given)}


def test_every_way_cold_and_warm_whole_unless_tp_is_given() -> None:
    cases = into_parameters()
    assert {one.layout for one in cases} == {"tp1"}
    assert {one.cache for one in cases} == {"cold", "warm"}
    for name in parameters.STAGED:
        ways = {one.loader for one in cases if one.options.get("by") == name}
        assert ways == {"read-alone", "staged", "overlapped"}
    own = {one.loader for one in cases if not {"by", "part"} & one.options.keys()}
    assert own == {"stock", "read-alone", "overlapped", "restored"}
    assert loaders_of() == {None, *parameters.STAGED}
    assert {one.layout for one in into_parameters(tp="8")} == {"tp8"}
    assert {one.layout for one in into_parameters(tp="4", ep=True)} == {"tp4-ep"}
    assert {one.cache for one in into_parameters(cache="warm,50%")} == {"warm"}


def test_full_stages_every_loader_of_the_format() -> None:
    names = loaders_of(full=True)
    assert names > {None, *parameters.STAGED}
    assert "dummy" not in names


def test_named_loaders_take_the_place_of_the_usual_ones_with_their_options() -> None:
    named = ["parallel:pages=huge,readers=2", "direct", "direct", "pt:mmap=true"]
    given = {"parallel:pages=huge,readers=2", "direct", "pt:mmap=true"}
    assert loaders_of(loader=named) == {None, *given}
    made = parameters.made("parallel:pages=huge,readers=2", threads=3)
    assert (made.settings["pages"], made.settings["readers"], made.threads) == ("huge", 2, 3)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory):
    work = tmp_path_factory.mktemp("assemble")
    written(work / "model")
    return prepare(work / "model", work, "tiny")


def checkpoint_in(
    folder: Path, tensors: dict[str, tuple[int, ...]], config: dict[str, Any]
) -> None:
    folder.mkdir()
    save_file(
        {name: torch.rand(shape).to(torch.bfloat16) for name, shape in tensors.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config))


def sizes(tensors: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Bytes in bfloat16."""
    return {name: 2 * math.prod(shape) for name, shape in tensors.items()}


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
    named = [*parameters.STAGED, "direct:rows=true,block_mib=1"]
    for case in into_parameters(tp=tp, cache="warm", loader=named):
        if "part" in case.options:
            assert "no draft model" in str(ASSEMBLE.refuses(case, ready))
            continue
        if case.loader == "restored":  # tests/test_restored_phase.py has a snapshot of it
            assert "no snapshot of that share was made" in str(ASSEMBLE.refuses(case, ready))
            continue
        assert ASSEMBLE.refuses(case, ready) is None
        heard = sampled(ready, case)
        assert heard["faults"] == []
        kept = sum(one.nbytes for one in planned(ready.checkpoint, int(tp)))
        if case.loader == "read-alone":
            assert heard["unproved"] is not None
            read = ready.checkpoint.tensor_bytes if "by" in case.options else kept
            assert heard["bytes"] == read
        else:
            assert heard["unproved"] is None
            assert heard["bytes"] == kept <= ASSEMBLE.memory_bytes(case, ready)
        stages = {name: found for name, found in heard["seconds"].items() if name != "total"}
        assert sum(stages.values()) == pytest.approx(heard["seconds"]["total"])
        assert ("slice" in stages) == (case.loader == "staged")


def test_a_draft_model_is_assembled_by_itself(tmp_path: Path) -> None:
    tensors, config = latent(layers=2, draft=1)
    tensors["model.layers.2.shared_head.norm.weight"] = (10,)
    checkpoint_in(tmp_path / "model", tensors, config)
    ready = prepare(tmp_path / "model", tmp_path, "tiny")
    whole = {}
    for case in into_parameters(cache="warm"):
        if case.loader != "overlapped" or "by" in case.options:
            continue
        assert ASSEMBLE.refuses(case, ready) is None
        heard = sampled(ready, case)
        assert heard["faults"] == []
        whole[case.options.get("part")] = heard["bytes"]
    by_name = sizes(tensors)
    draft = sum(size for name, size in by_name.items() if ".layers.2." in name)
    assert whole == {"draft": draft, None: sum(by_name.values()) - draft}


def test_what_is_unfilled_or_surplus_is_named(tmp_path: Path) -> None:
    lacking = {name: shape for name, shape in shapes().items() if "layers.1.mlp.up" not in name}
    lacking["model.layers.0.self_attn.rotary_emb.inv_freq"] = (4,)
    config = {**CONFIG, "tie_word_embeddings": True}
    checkpoint_in(tmp_path / "model", lacking, config)
    ready = prepare(tmp_path / "model", tmp_path, "tiny")
    case = next(one for one in into_parameters(cache="warm") if one.loader == "stock")
    heard = sampled(ready, case)
    notes = " ".join(heard["notes"])
    assert "unfilled: model.layers.1.mlp.gate_up_proj.weight lacks its part up" in notes
    assert "no parameter takes model.layers.0.self_attn.rotary_emb.inv_freq" in notes
    kept = sizes({name: shape for name, shape in lacking.items() if "rotary" not in name})
    tied = kept.pop("lm_head.weight")
    padding = -VOCAB % 64 * HIDDEN * 2
    assert heard["bytes"] == sum(kept.values()) + padding
    assert tied, "the head is in the files, and counts once"


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


def test_a_loader_that_cannot_assemble_is_refused_with_the_reason(ready) -> None:
    for case in into_parameters(loader=["pt:mmap=true"], cache="warm"):
        if case.options.get("by"):
            assert "doesn't read safetensors files" in str(ASSEMBLE.refuses(case, ready))


def test_what_cannot_be_divided_is_refused_with_the_reason(ready, tmp_path: Path) -> None:
    case = into_parameters(tp="3")[0]
    assert "3" in str(ASSEMBLE.refuses(case, ready))
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in ready.checkpoint.files:
        (bare / file.name).symlink_to(file.path)
    without = SimpleNamespace(checkpoint=open_checkpoint(str(bare)))
    assert "config.json" in str(ASSEMBLE.refuses(into_parameters()[0], without))
