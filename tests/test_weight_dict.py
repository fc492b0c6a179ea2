"""Which tensors of a saved object count as weights (C30)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_torch import (
    codes,
    manifest,
    names,
    save,
)

FORMS = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


def nested(weights: dict[str, torch.Tensor]) -> dict[str, object]:
    moments = {i: {"exp_avg": w * 0, "exp_avg_sq": w * 0} for i, w in enumerate(weights.values())}
    return {
        "optimizer": {"state": moments, "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
        "step": 7,
        "loss": None,
        "name": "run",
        "rng_state": torch.zeros(64, dtype=torch.uint8),
    }


@FORMS
@pytest.mark.parametrize(
    "key", ["state_dict", "model_state_dict", "model", "module", "weights", "net", "ema"]
)
def test_c30_nested_weights(tmp_path: Path, legacy: bool, key: str) -> None:
    weights = {"a.weight": torch.rand(8, 8), "b.weight": torch.rand(8)}
    path = save({**nested(weights), key: weights}, tmp_path / "x.pt", legacy=legacy)
    specs, (warning,) = manifest(path)
    assert sorted(spec.name for spec in specs) == ["a.weight", "b.weight"]
    assert warning.severity == "warning"
    assert warning.code == "not-weights"
    for part in ("optimizer (4 tensors, 576 bytes)", "rng_state (1 tensor, 64 bytes)", repr(key)):
        assert part in warning.message


def test_c30_the_order_of_known_keys_and_depth(tmp_path: Path) -> None:
    w, v = torch.ones(2), torch.ones(3)
    assert names(save({"ema": {"e": v}, "model": {"m": w}}, tmp_path / "a.pt")) == ["m"]
    assert names(save({"model": {"state_dict": {"m.x": w}}}, tmp_path / "b.pt")) == ["m.x"]
    # a name like a parameter's makes the level a state dict itself
    flat = {"model": {"x": w}, "head.weight": v, "optimizer": {"m": w}}
    assert names(save(flat, tmp_path / "c.pt")) == ["head.weight", "model.x"]
    # an empty known key, or one without tensors, isn't gone into
    assert names(save({"model": {}, "net": {"lr": 1}, "w": w}, tmp_path / "d.pt")) == ["w"]
    # Megatron's nesting, a list of stages, integer keys
    deep = {"model": {"language_model": {"embedding": {"weight": w}}, "stages": [{"w": v}, v]}}
    assert names(save(deep, tmp_path / "e.pt")) == [
        "language_model.embedding.weight",
        "stages.0.w",
        "stages.1",
    ]
    assert names(save({0: w, 1: v}, tmp_path / "f.pt")) == ["0", "1"]
    # two networks under names that nobody knows: both count, their optimizers don't
    gan = {
        "generator": {"weight": w},
        "discriminator": {"weight": v},
        "generator_optimizer": {"state": {0: {"m": w}}, "param_groups": []},
        "optim": {"moments": [w, v]},
        "lr_scheduler": {"last": w},
        "grad_scaler": {"scale": w},
        "cuda_rng_state": w,
    }
    path = save(gan, tmp_path / "g.pt")
    assert names(path) == ["discriminator.weight", "generator.weight"]
    assert codes(path) == ["not-weights"]


def test_c30_data_parallel_prefixes_stay(tmp_path: Path) -> None:
    path = save({"module.a.weight": torch.ones(2)}, tmp_path / "x.pt")
    assert names(path) == ["module.a.weight"]


def test_c30_optimizer_names_inside_a_model_are_weights(tmp_path: Path) -> None:
    inner = {"scaler": torch.ones(1), "scheduler.weight": torch.ones(2), "opt.bias": torch.ones(3)}
    assert names(save(inner, tmp_path / "a.pt")) == sorted(inner)
    assert names(save({"state_dict": inner}, tmp_path / "b.pt")) == sorted(inner)


def test_c30_odd_keys_are_warned_about(tmp_path: Path) -> None:
    path = save({"a": torch.ones(2), (1, "x"): torch.ones(4), None: 3}, tmp_path / "x.pt")
    specs, (warning,) = manifest(path)
    assert [spec.name for spec in specs] == ["a"]
    assert "<key of type tuple> (1 tensor, 16 bytes)" in warning.message


@pytest.mark.parametrize(
    ("saved", "code"),
    [
        ({}, "no-tensors"),
        ({"epoch": 3, "name": "x", "nothing": None}, "no-tensors"),
        ({"model": {}}, "no-tensors"),
        (torch.ones(3), "no-weight-dict"),
        (torch.nn.Parameter(torch.ones(3)), "no-weight-dict"),
        ([torch.ones(3), torch.ones(2)], "no-weight-dict"),
        ((torch.ones(3),), "no-weight-dict"),
        (7, "no-weight-dict"),
        (None, "no-weight-dict"),
        ("text", "no-weight-dict"),
        (torch.ones(2).untyped_storage(), "no-weight-dict"),
        ({"state": {0: {"step": torch.ones(1)}}, "param_groups": []}, "not-weights"),
        ({"optimizer": {"m": torch.ones(1)}, "step": 3}, "not-weights"),
        ({"a": {"b": torch.ones(1)}, "a.b": torch.ones(2)}, "duplicate-tensor"),
        ({1: torch.ones(1), "1": torch.ones(2)}, "duplicate-tensor"),
    ],
)
def test_c30_c31_files_without_a_weight_dict(tmp_path: Path, saved: object, code: str) -> None:
    path = save(saved, tmp_path / "x.bin")
    specs, problems = manifest(path)
    assert specs == []
    assert [p.code for p in problems] == [code]
    assert problems[0].message.startswith("x.bin: ")


def test_c30_tensors_under_keys_that_are_no_names(tmp_path: Path) -> None:
    (problem,) = manifest(save({("a", "b"): torch.ones(2)}, tmp_path / "a.pt"))[1]
    assert problem.code == "no-weight-dict"
    assert "keys that are no names" in problem.message
    assert "training state" not in problem.message
