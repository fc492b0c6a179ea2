"""What a snapshot holds: the rank's parameters, as assembling them by the engines' way gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_snapshot import assembled, held, model, same, snapshot
from tiny_synth import make, names_in

from bench.synth.place import PlaceError
from loaders.checkpoint.read import open_checkpoint
from loaders.quantise import reference
from loaders.quantise.layout import from_nz
from loaders.quantise.schemes import scheme
from loaders.slicing.errors import PlanError
from loaders.slicing.plan import Degrees
from loaders.snapshot.errors import StateError
from loaders.snapshot.format import ALIGN


@pytest.mark.parametrize(
    ("shape", "tp", "ep", "pp"),
    [
        ("qwen3-0.6b", 1, 1, 1),
        ("qwen3-0.6b", 2, 1, 1),
        ("llama-3.1-8b", 2, 1, 2),
        ("mixtral-8x7b", 2, 1, 1),
        ("qwen3-30b-a3b", 2, 2, 1),
        ("deepseek-v3", 1, 1, 1),
    ],
)
def test_each_rank_is_what_assembling_gives(
    shape: str, tp: int, ep: int, pp: int, tmp_path: Path
) -> None:
    source = model(tmp_path / "m", shape, size=2 << 20)
    made = snapshot(source, tmp_path / "s", tp, ep=ep, pp=pp, batch_bytes=200_000)
    assert len(made.files) == tp * pp
    for rank, name in enumerate(made.files):
        degrees = Degrees(tp=tp, ep=ep, pp=pp)
        assert same(held(tmp_path / "s" / name), assembled(source, degrees, rank))
        checkpoint = open_checkpoint(tmp_path / "s" / name)
        assert all(
            spec.offset is not None and not spec.offset % ALIGN for spec in checkpoint.tensors
        )
        assert checkpoint.facts is not None
        assert checkpoint.facts["layout"] == {"tp": tp, "pp": pp, "ep": ep, "rank": rank}
        assert checkpoint.facts["processing"] == "pre"
        assert checkpoint.facts["made"]["seconds"] > 0
        assert checkpoint.config == source.config


@pytest.mark.parametrize("form", ["pt", "npcache"])
def test_other_formats_give_the_same_source_digest(form: str, tmp_path: Path) -> None:
    facts = []
    for number, kind in enumerate(["safetensors", form]):
        made = make(tmp_path / kind, form=kind, dtype=None if form == "pt" else "float16")
        snapshot(open_checkpoint(made.folder), tmp_path / f"s{number}")
        found = open_checkpoint(tmp_path / f"s{number}").facts
        assert found is not None
        facts.append(found["source"])
    if form == "pt":
        assert facts[0]["structure"] == facts[1]["structure"]
        assert facts[0]["content"] == facts[1]["content"]
    assert facts[1]["format"] == form


@pytest.mark.parametrize("name", ["int8-channel", "fp8-block-fp32", "int8-tensor-127"])
@pytest.mark.parametrize("shape", ["qwen3-0.6b", "mixtral-8x7b"])
def test_quantised_as_the_reference_does_it(name: str, shape: str, tmp_path: Path) -> None:
    source = model(tmp_path / "m", shape)
    made = snapshot(source, tmp_path / "s", 2, quantise=name)
    assert made.how == "row blocks"
    plain = assembled(source, Degrees(tp=2), 0)
    found = held(tmp_path / "s" / "rank-00000-of-00002.snapshot")
    scales = {key for key in found if key.endswith("_scale")}
    assert scales
    for key in scales:
        weight, values = plain[key.removesuffix("_scale")], found[key.removesuffix("_scale")]
        stack = weight.reshape(-1, *weight.shape[-2:])
        for matrix, got, scale in zip(
            stack,
            values.reshape(stack.shape),
            found[key].reshape(len(stack), *found[key].shape[weight.dim() - 2 :]),
            strict=True,
        ):
            right = reference.quantise(matrix, scheme(name), name=key)
            assert torch.equal(got.view(torch.uint8), right.values.view(torch.uint8))
            assert torch.equal(scale, right.scale)
    left = plain.keys() - {key.removesuffix("_scale") for key in scales}
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= left
    assert not any("mlp.down_proj" in key or "w13" in key for key in left)
    assert same({key: found[key] for key in left}, {key: plain[key] for key in left})


def test_the_layout_of_an_npu_can_be_undone(tmp_path: Path) -> None:
    source = model(tmp_path / "m", "mixtral-8x7b")
    snapshot(source, tmp_path / "plain", quantise="int8-channel")
    snapshot(source, tmp_path / "nz", quantise="int8-channel", layout="nz")
    snapshot(source, tmp_path / "transpose", quantise="int8-channel", layout="transpose")
    name = "rank-00000-of-00001.snapshot"
    plain, nz, turned = (held(tmp_path / kind / name) for kind in ("plain", "nz", "transpose"))
    assert plain.keys() == nz.keys() == turned.keys()
    weights = [key for key, tensor in plain.items() if tensor.dtype == torch.int8]
    assert any(plain[key].dim() == 3 for key in weights)
    for key in weights:
        stack = plain[key].reshape(-1, *plain[key].shape[-2:])
        rows, columns = stack.shape[1:]
        blocks = nz[key].reshape(len(stack), *nz[key].shape[-4:])
        for matrix, block, other in zip(
            stack, blocks, turned[key].reshape(len(stack), columns, rows), strict=True
        ):
            assert torch.equal(from_nz(block, (columns, rows)).t(), matrix)
            assert torch.equal(other.t(), matrix)
    facts = open_checkpoint(tmp_path / "nz").facts
    assert facts is not None
    assert (facts["processing"], facts["device_layout"]) == ("post", "nz")


def test_one_rank_alone(tmp_path: Path) -> None:
    source = model(tmp_path / "m")
    made = snapshot(source, tmp_path / "s", 2, ranks=(1,))
    assert list(made.files) == ["rank-00001-of-00002.snapshot"]
    assert not open_checkpoint(tmp_path / "s").problems


def test_what_cannot_be_made_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    source = model(tmp_path / "m")
    for how, text in (
        ({"ranks": (2,)}, "expected 0 to 1"),
        ({"layout": "nz"}, "add --quantise"),
        ({"ep": 3}, "ep"),
    ):
        with pytest.raises((StateError, PlanError), match=text):
            snapshot(source, tmp_path / "s", 2, **how)
    snapshot(source, tmp_path / "s", quantise="int8-channel")
    with pytest.raises(StateError, match="snapshot already"):
        snapshot(open_checkpoint(tmp_path / "s"), tmp_path / "again")
    assert names_in(tmp_path) == ["m", "s"]


def test_it_never_overwrites(tmp_path: Path) -> None:
    source = model(tmp_path / "m")
    (tmp_path / "s").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("s", "dangling", "m"):
        with pytest.raises(PlaceError, match="never overwritten"):
            snapshot(source, tmp_path / name)
    assert names_in(tmp_path) == ["dangling", "m", "s"]
