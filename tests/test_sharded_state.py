"""The engines' own snapshot: what vLLM 0.32 calls a rank's tensors, whole and as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tiny_loaders import Stamps
from tiny_snapshot import assembled, flip, model, same, snapshot
from tiny_synth import names_in

from bench.cli import main
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.io.errors import LoadError
from loaders.registry import get
from loaders.slicing.plan import Degrees
from loaders.snapshot.errors import StateError

EVERY_LAYER = [
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.qkv_proj.weight",
    "self_attn.o_proj.weight",
    *(f"self_attn.attn._{name}_scale" for name in ("k", "v", "q", "prob")),
]
DENSE = ["mlp.gate_up_proj.weight", "mlp.down_proj.weight"]
NORMED = ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]

# As the state dict of vLLM 0.32's own model names them, those that share memory left out: read from
# the engine, of a tiny model of each architecture.
ENGINE = {
    "llama-3.1-8b": ([*EVERY_LAYER, *DENSE], ["model.embed_tokens.weight"]),
    "qwen3-0.6b": ([*EVERY_LAYER, *DENSE, *NORMED], []),  # tied: the head stands for both
    "mixtral-8x7b": (
        [
            *EVERY_LAYER,
            "block_sparse_moe.gate.weight",
            "block_sparse_moe.experts.routed_experts.w13_weight",
            "block_sparse_moe.experts.routed_experts.w2_weight",
        ],
        ["model.embed_tokens.weight"],
    ),
    "qwen3-30b-a3b": (
        [
            *EVERY_LAYER,
            *NORMED,
            "mlp.experts.gate.weight",
            "mlp.experts.routed_experts.w13_weight",
            "mlp.experts.routed_experts.w2_weight",
        ],
        ["model.embed_tokens.weight"],
    ),
}


def state(folder: Path, stem: str = "model-rank-0") -> dict[str, torch.Tensor]:
    parts = sorted(folder.glob(f"{stem}-part-*.safetensors"))
    names = [f"{stem}-part-{number}.safetensors" for number in range(len(parts))]
    assert [path.name for path in parts] == sorted(names)
    found: dict[str, torch.Tensor] = {}
    for path in parts:
        found |= load_file(path)
    return found


def without_scales(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one for name, one in found.items() if "attn._" not in name}


@pytest.mark.parametrize("shape", ENGINE)
def test_names_are_the_engines(shape: str, tmp_path: Path) -> None:
    source = model(tmp_path / "m", shape, size=2 << 20)
    snapshot(source, tmp_path / "s", form="sharded-state")
    in_layer, outside = ENGINE[shape]
    assert source.config is not None
    layers = range(int(source.config["num_hidden_layers"]))
    found = state(tmp_path / "s")
    assert found.keys() == {
        "lm_head.weight",
        "model.norm.weight",
        *outside,
        *(f"model.layers.{layer}.{name}" for layer in layers for name in in_layer),
    }
    scales = [one for name, one in found.items() if "attn._" in name]
    assert all(torch.equal(one, torch.tensor(1.0)) for one in scales)
    # the bytes are those of the plan's parameters, whatever they are called
    plain = assembled(source, Degrees(), 0)
    assert sorted(map(digest, without_scales(found).values())) == sorted(
        map(digest, plain.values())
    )


def digest(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), raw


@pytest.mark.parametrize(("pp", "part_bytes"), [(1, 5 << 30), (1, 100_000), (2, 100_000)])
def test_each_rank_in_parts(pp: int, part_bytes: int, tmp_path: Path) -> None:
    source = model(tmp_path / "m", "llama-3.1-8b", size=4 << 20)  # two layers
    snapshot(source, tmp_path / "s", 2, pp=pp, form="sharded-state", part_bytes=part_bytes)
    for rank in range(2 * pp):
        stem = f"model-rank-{rank}" if pp == 1 else f"model-pp-{rank // 2}-tp-{rank % 2}"
        found = state(tmp_path / "s", stem)
        assert same(without_scales(found), assembled(source, Degrees(tp=2, pp=pp), rank))
        parts = sorted((tmp_path / "s").glob(f"{stem}-part-*.safetensors"))
        assert (len(parts) > 1) == (part_bytes < 1 << 30)
        # any of its parts stands for the rank, and no other rank's are read with it
        checkpoint = open_checkpoint(parts[-1])
        assert {file.name for file in checkpoint.files} == {path.name for path in parts}
        assert {spec.name for spec in checkpoint.tensors} == set(found)


def test_a_tied_embedding_has_its_own_name_where_there_is_no_head(tmp_path: Path) -> None:
    source = model(tmp_path / "m", "qwen3-0.6b")
    snapshot(source, tmp_path / "s", pp=2, form="sharded-state")
    first, last = (state(tmp_path / "s", f"model-pp-{stage}-tp-0") for stage in (0, 1))
    assert "model.embed_tokens.weight" in first
    assert "lm_head.weight" not in first
    assert "lm_head.weight" in last
    assert "model.embed_tokens.weight" not in last
    assert torch.equal(first["model.embed_tokens.weight"], last["lm_head.weight"])


def test_loaded_by_its_loader_and_by_others(tmp_path: Path) -> None:
    source = model(tmp_path / "m", "llama-3.1-8b")
    snapshot(source, tmp_path / "s", 2, form="sharded-state", part_bytes=200_000)
    for rank in (0, 1):
        checkpoint = open_checkpoint(tmp_path / "s" / f"model-rank-{rank}-part-0.safetensors")
        expected = assembled(source, Degrees(tp=2), rank)
        for name in ("sharded-state", "direct", "safetensors-mmap"):
            loaded = get(name)(2).load(checkpoint, Stamps())
            found = {key: tensor.clone() for key, tensor in loaded}
            assert same(without_scales(found), expected)
        assert get("sharded-state")(1).refuses(checkpoint) is None


REFUSED = [
    ("deepseek-v3", {}, {}, "latent (MLA)"),
    ("llama-3.1-8b", {"dtype": "float8_e4m3fn"}, {}, "it is quantised"),
    ("llama-3.1-8b", {}, {"quantise": "int8-channel"}, "leave out --quantise"),
    ("qwen3-30b-a3b", {"architecture": "Glm4MoeForCausalLM"}, {}, "'Glm4MoeForCausalLM'"),
]


@pytest.mark.parametrize(("shape", "how", "asked", "text"), REFUSED)
def test_what_the_engine_would_not_take_is_refused(
    shape: str, how: dict[str, Any], asked: dict[str, Any], text: str, tmp_path: Path
) -> None:
    made = {key: value for key, value in how.items() if key != "architecture"}
    source = as_architecture(model(tmp_path / "m", shape, **made), how.get("architecture"))
    with pytest.raises(StateError, match="no sharded state: ") as refused:
        snapshot(source, tmp_path / "s", form="sharded-state", **asked)
    assert text in str(refused.value)
    assert names_in(tmp_path) == ["m"]
    # and nobody is told to make one
    reason = get("sharded-state")(1).refuses(source)
    assert reason is not None
    assert ("--format sharded-state" in reason) == bool(asked)


def as_architecture(source: Checkpoint, name: str | None) -> Checkpoint:
    if name is None:
        return source
    path = Path(source.root) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [name]}))
    return open_checkpoint(source.root)


def test_whom_it_can_be_made_of_is_told_how(tmp_path: Path) -> None:
    reason = get("sharded-state")(1).refuses(model(tmp_path / "m"))
    assert reason is not None
    assert "model-00001-of-00002.safetensors" in reason
    assert "`coldload snapshot --format sharded-state` makes such files" in reason


# What the card beside the files tells of them.


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with a model `m` and a sharded state `s` of it for tp 2, in several parts."""
    source = model(tmp_path / "m", "llama-3.1-8b")
    snapshot(source, tmp_path / "s", 2, form="sharded-state", part_bytes=200_000)
    return tmp_path


def problems(path: Path, *args: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, ["check", str(path), *args, "--json"])
    found: list[dict[str, Any]] = json.loads(done.stdout)["problems"]
    assert done.exit_code == (1 if found else 0)
    return found


def codes(path: Path, *args: str) -> list[str]:
    return [one["code"] for one in problems(path, *args)]


def part(made: Path, rank: int = 1, number: int = 0) -> Path:
    return made / "s" / f"model-rank-{rank}-part-{number}.safetensors"


def test_the_card_says_what_it_was_made_for_and_of(made: Path) -> None:
    asked = ("--verify", "--source", str(made / "m"), "--tp", "2", "--rank", "1")
    assert codes(part(made), *asked) == []
    for option in (("--tp", "4"), ("--pp", "2"), ("--ep", "2"), ("--rank", "0")):
        assert codes(part(made), *option) == ["other-layout"]
    model(made / "fine-tuned", "llama-3.1-8b", seed=7)
    assert codes(part(made), "--source", str(made / "fine-tuned")) == ["other-source"]


def test_a_flipped_bit(made: Path) -> None:
    for number in (0, 1):
        path = part(made, 1, number)
        spec = next(one for one in open_checkpoint(path).tensors if one.file == path.name)
        assert spec.offset is not None
        flip(path, spec.offset + spec.nbytes - 1)
        (problem,) = problems(part(made), "--verify")
        assert problem["code"] == "checksum-mismatch"
        assert (problem["file"], problem["tensor"]) == (path.name, spec.name)
        flip(path, spec.offset + spec.nbytes - 1)
    assert codes(part(made), "--verify") == []


def test_a_part_that_is_missing_or_of_another_make_loads_nothing(made: Path) -> None:
    path = part(made, 1, 1)
    whole = path.read_bytes()
    path.unlink()
    assert codes(part(made), "--tp", "2") == ["other-tensors"]
    checkpoint = open_checkpoint(part(made))
    reason = get("sharded-state")(1).refuses(checkpoint)
    assert reason is not None
    assert "rank 1's files lack" in reason
    with pytest.raises(LoadError, match="lack"):
        list(get("sharded-state")(1).load(checkpoint, Stamps()))
    path.write_bytes(whole[: len(whole) // 2])
    assert codes(part(made))[0] == "truncated-file"
    save_file({"more": torch.zeros(2)}, path)
    assert codes(part(made), "--tp", "2") == ["other-tensors"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        '{"format": "sharded-state"}',
        '{"format": "sharded-state", "ranks": {"0": {}}, "ranks": {}}',
        '{"format": "sharded-state", "ranks": 1}',
    ],
)
def test_a_card_that_is_none(text: str, made: Path) -> None:
    (made / "s" / "coldload.json").write_text(text)
    assert codes(part(made), "--verify") == ["corrupt-header"]
    assert get("sharded-state")(1).refuses(open_checkpoint(part(made))) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"layout": {"tp": 0, "pp": 1, "ep": 1}},
        {"layout": {"tp": "2", "pp": 1, "ep": 1}},
        {"ranks": {"2": {}}},
        {"ranks": {"-1": {}}},
        {"ranks": {"1": {"w": 7}}},
        {"source": None},
        {"processing": "middle"},
        {"parameters": []},
    ],
)
def test_cards_that_were_never_written(change: dict[str, Any], made: Path) -> None:
    path = made / "s" / "coldload.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert codes(part(made), "--verify") == ["corrupt-header"]


def test_without_its_card_the_questions_have_no_answer(made: Path) -> None:
    (made / "s" / "coldload.json").unlink()
    done = CliRunner().invoke(main, ["check", str(part(made)), "--verify"])
    assert done.exit_code == 2
    assert "without its coldload.json" in done.stderr
    assert get("sharded-state")(1).refuses(open_checkpoint(part(made))) is None
