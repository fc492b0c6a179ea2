"""Real software opens what `coldload quantize` writes, and computes what our values say."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from bench.cli import main
from loaders.quantise.reference import dequantise

pytestmark = pytest.mark.filterwarnings("ignore")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", minversion="5.0")
    pytest.importorskip("compressed_tensors")

TOKENS = torch.arange(12).reshape(1, 12)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaders.quantise.kernels.no_compiler", lambda device: "not in this test")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    moe = transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            **SIZES, head_dim=8, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2
        )
    )
    found = {}
    for name, model in (("llama", llama), ("qwen3-moe", moe)):
        found[name] = folder / name
        model.to(torch.bfloat16).save_pretrained(found[name])
    return found


def quantised(source: Path, dest: Path, scheme: str) -> Path:
    arguments = ["quantize", str(source), str(dest), "--format", "compressed-tensors"]
    done = CliRunner().invoke(main, [*arguments, "--scheme", scheme])
    assert done.exit_code == 0, done.output
    return dest


def logits(folder: Path, **options: Any) -> torch.Tensor:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, output_loading_info=True, **options
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        return model(TOKENS).logits


def dense(source: Path, dest: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """The unquantised model folder with these weights."""
    shutil.copytree(source, dest)
    save_file(tensors, dest / "model.safetensors", metadata={"format": "pt"})
    return dest


def ours(folder: Path) -> dict[str, torch.Tensor]:
    """The model's weights, computed by us from what was written."""
    stored = load_file(folder / "model.safetensors")
    found = {}
    for name, tensor in stored.items():
        if name.endswith(("_scale", "_shape")):
            continue
        base = name.removesuffix("_packed")
        if base != name:
            columns = int(stored[f"{base}_shape"][1])
            tensor = (tensor.view(torch.uint8) ^ 0x80).view(torch.int8)[:, :columns]
        scale = stored.get(f"{base}_scale")
        found[base] = tensor if scale is None else dequantise(tensor, scale)
    return found


@pytest.mark.parametrize(
    ("model", "scheme"),
    [
        ("llama", "int8-channel"),
        ("llama", "int8-tensor"),
        ("llama", "int8-weight-only"),
        ("llama", "fp8-channel"),
        ("qwen3-moe", "fp8-channel"),
        ("qwen3-moe", "fp8-tensor"),
        ("qwen3-moe", "int8-weight-only"),
    ],
)
def test_transformers_computes_what_our_values_say(
    models: dict[str, Path], tmp_path: Path, model: str, scheme: str
) -> None:
    folder = quantised(models[model], tmp_path / "quantised", scheme)
    expected = logits(dense(models[model], tmp_path / "dense", ours(folder)))
    options = transformers.CompressedTensorsConfig(dequantize=True)
    assert torch.equal(logits(folder, quantization_config=options), expected)
    assert (expected - logits(models[model])).abs().max() < 0.05


def test_transformers_runs_llama_with_quantised_activations(
    models: dict[str, Path], tmp_path: Path
) -> None:
    folder = quantised(models["llama"], tmp_path / "quantised", "int8-channel")
    assert (logits(folder) - logits(models["llama"])).abs().max() < 0.05


def test_qwen3_moe_int8_through_the_library(models: dict[str, Path], tmp_path: Path) -> None:
    """transformers 5.24 has no way to load int8 experts that aren't packed, so compressed-tensors
    itself takes them apart here."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    folder = quantised(models["qwen3-moe"], tmp_path / "quantised", "int8-channel")
    written = json.loads((folder / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(written)
    scheme = config.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(config.format)
    stored = load_file(folder / "model.safetensors")
    theirs = {}
    for name, tensor in stored.items():
        if name.endswith("_scale"):
            continue
        scale = stored.get(f"{name}_scale")
        if scale is not None:
            state = {"weight": tensor, "weight_scale": scale}
            tensor = compressor.decompress(state, scheme)["weight"]
        theirs[name] = tensor
    own = ours(folder)
    assert all(torch.equal(theirs[name], own[name]) for name in own)
    expected = logits(dense(models["qwen3-moe"], tmp_path / "theirs", theirs))
    assert torch.equal(logits(dense(models["qwen3-moe"], tmp_path / "ours", own)), expected)
    assert (expected - logits(models["qwen3-moe"])).abs().max() < 0.05
