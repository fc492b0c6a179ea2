"""Plans against the tensor-parallel plans of `transformers`, on its own small random models.

The model is saved by transformers (experts one by one) and planned from its files; what each rank
must have is cut out of the model's parameters in memory by transformers' own plan (`colwise`,
`rowwise`, `packed_colwise`), which knows nothing of ours. Engines stack parts that transformers
keeps apart: so the expected parts are laid below each other.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.slicing.build import plan_rank
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees, RankPlan, byte_run

transformers = pytest.importorskip("transformers")

COMMON = {
    "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 96, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 16, "decoder_sparse_step": 1},
    "Mixtral": {"num_local_experts": 4},
    "DeepseekV3": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 16, "first_k_dense_replace": 1, "q_lora_rank": 20,
                   "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
                   "v_head_dim": 5, "n_group": 2, "topk_group": 1},
}  # fmt: skip
# What an engine calls a parameter, and which of transformers' it is made of, in order.
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
# DeepSeek's attention has no plan in transformers; engines cut it by heads.
LATENT = {"q_b_proj": "colwise", "kv_b_proj": "colwise", "o_proj": "rowwise"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, tuple[Path, dict[str, torch.Tensor], dict[str, str]]] = {}

    def get(family: str):
        if family not in made:
            torch.manual_seed(0)
            config = getattr(transformers, f"{family}Config")(**COMMON, **FAMILIES[family])
            model = getattr(transformers, f"{family}ForCausalLM")(config)
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            plan = {f"model.{name}": style for name, style in config.base_model_tp_plan.items()}
            made[family] = folder, dict(model.named_parameters()), plan
        return made[family]

    return get


def style_of(module: str, plan: dict[str, str]) -> str | None:
    """The style that transformers' plan has for a module or parameter."""
    general = re.sub(r"\.\d+\.", ".*.", module)
    if general in plan:
        return plan[general]
    planned = any("self_attn" in name for name in plan)
    return None if planned or "self_attn" not in module else LATENT.get(module.rpartition(".")[2])


def cut(tensor: torch.Tensor, style: str | None, tp: int, rank: int) -> torch.Tensor:
    if style == "colwise":
        return tensor.chunk(tp, dim=0)[rank]
    if style == "rowwise":
        return tensor if tensor.ndim == 1 else tensor.chunk(tp, dim=-1)[rank]
    if style == "packed_colwise":
        return torch.cat([half.chunk(tp, dim=-2)[rank] for half in tensor.chunk(2, dim=-2)], dim=-2)
    assert style in (None, "replicated_with_grad_allreduce"), style
    return tensor


def expected(name: str, memory: dict[str, torch.Tensor], plan, tp: int, rank: int, ep: bool):
    """The parameter `name` of an engine, out of transformers' model."""
    if ".experts.w" in name:
        at = name.replace("block_sparse_moe", "mlp").replace(".w13_weight", ".gate_up_proj")
        at = at.replace(".w2_weight", ".down_proj")
        tensor = memory[at]
        return tensor.chunk(tp)[rank] if ep else cut(tensor, style_of(at, plan), tp, rank)
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        padded = torch.zeros(128, 24)
        padded[:96] = memory[name]
        return padded.chunk(tp)[rank]
    module, _, end = name.replace("block_sparse_moe", "mlp").rpartition(".")
    if module.endswith("mlp.gate") and f"{module}.{end}" not in memory:  # a buffer
        return None
    for fused, parts in FUSED.items():
        if module.endswith(fused):
            modules = [module.removesuffix(fused) + part for part in parts]
            break
    else:
        modules = [module]
    return torch.cat(
        [cut(memory[f"{one}.{end}"], style_of(one, plan), tp, rank) for one in modules]
    )


def assembled(plan: RankPlan, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The rank's parameters out of the files, by byte ranges alone."""
    specs = {spec.name: spec for spec in checkpoint.tensors}
    raw = {file.name: Path(file.path).read_bytes() for file in checkpoint.files}
    found: dict[str, torch.Tensor] = {}
    for parameter in plan.parameters:
        target = torch.zeros(parameter.shape)
        for piece in parameter.pieces:
            run = byte_run(specs[piece.tensor], piece)
            rows = [
                raw[run.file][run.offset + n * run.stride :][: run.length] for n in range(run.count)
            ]
            block = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.float32)
            window = piece.window(parameter)
            target[window] = block.reshape(target[window].shape)
        found[parameter.name] = target
    return found


CASES = [(family, tp, False) for family in FAMILIES for tp in (1, 2, 4)]
CASES += [(family, tp, True) for family in ("Qwen3Moe", "Mixtral", "DeepseekV3") for tp in (2, 4)]


@pytest.mark.parametrize(("family", "tp", "ep"), CASES)
def test_every_rank_has_what_transformers_plan_gives_it(saved, family, tp, ep):
    folder, memory, plan = saved(family)
    checkpoint = open_checkpoint(folder)
    model = model_of(checkpoint)
    assert model.notes == ()
    compared = 0
    for rank in range(tp):
        ours = plan_rank(model, Degrees(tp=tp, ep=tp if ep else 1), rank)
        for name, got in assembled(ours, checkpoint).items():
            want = expected(name, memory, plan, tp, rank, ep)
            if want is None:
                assert name.endswith("e_score_correction_bias")
                continue
            assert torch.equal(got, want.detach()), name
            compared += 1
    assert compared >= 12 * tp


def test_the_files_are_those_that_safetensors_reads(saved):
    """The reference stands on the files' own bytes: so these are checked once, too."""
    folder, memory, _ = saved("Llama")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            assert torch.equal(file.get_tensor(name), memory[name])
