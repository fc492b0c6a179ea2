"""Descriptions of quantised checkpoints that say odd things: a named problem, never a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from bench.cli import main
from tests import tiny_quantised as tiny

UP = f"{tiny.LAYER}.mlp.up_proj"


def check(folder: Path) -> tuple[int, list[dict[str, str]]]:
    done = CliRunner().invoke(main, ["check", str(folder), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)["problems"]


def stored(scale: torch.Tensor, rows: int = 8) -> dict[str, torch.Tensor]:
    return {
        f"{UP}.weight": torch.zeros(rows, 8, dtype=torch.int8),
        f"{UP}.weight_scale": scale,
        "model.norm.weight": torch.ones(8),
    }


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("block", {"block_structure": [128]}),
        ("block", {"block_structure": []}),
        ("block", {"block_structure": [0, 0]}),
        ("block", {"block_structure": [-1, 128]}),
        ("block", {"block_structure": ["a", 1]}),
        ("block", {"block_structure": 128}),
        ("block", {"block_structure": "128x128"}),
        ("group", {"group_size": "128"}),
        ("group", {"group_size": -5}),
        ("group", {"group_size": True}),
        ("group", {"group_size": [4]}),
        ("channel", {"num_bits": [8]}),
        ("channel", {"num_bits": {}}),
    ],
)
def test_sizes_that_are_none(tmp_path: Path, strategy: str, more: dict[str, Any]) -> None:
    config = tiny.compressed_config([], strategy=strategy, **more)
    folder = tiny.write(tmp_path / "m", stored(torch.ones(8, 1)), config=config)
    code, problems = check(folder)
    assert code == 1
    assert [one["code"] for one in problems] == ["quantisation-invalid"]


@pytest.mark.parametrize("size", [None, -1])
def test_no_group_size_is_none(tmp_path: Path, size: int | None) -> None:
    config = tiny.compressed_config([], group_size=size)
    assert check(tiny.write(tmp_path / "m", stored(torch.ones(8, 1)), config=config)) == (0, [])


@pytest.mark.parametrize(
    "groups",
    [None, [], "W8A8", {"g": None}, {"g": []}, {"g": "Linear"}, {"g": {"targets": None}}, {"g": 1}],
)
def test_groups_that_are_none(tmp_path: Path, groups: Any) -> None:
    config = tiny.compressed_config([])
    config["quantization_config"]["config_groups"] = groups
    check(tiny.write(tmp_path / "m", stored(torch.ones(8, 1)), config=config))


@pytest.mark.parametrize("shape", [(), (8,), (2, 3, 4), (0,), (0, 8)])
@pytest.mark.parametrize("kind", ["W8A8_DYNAMIC", "W8A8", "FLOAT", "W4A8", "", "W8A8_DYNAMIC "])
def test_described_weights_of_any_shape(tmp_path: Path, shape: tuple[int, ...], kind: str) -> None:
    tensors = {
        f"{UP}.weight": torch.zeros(shape, dtype=torch.int8),
        f"{UP}.weight_scale": torch.ones(3, 1),
        f"{UP}.weight_offset": torch.zeros(()),
        "model.norm.weight": torch.ones(8),
    }
    folder = tiny.write(tmp_path / "m", tensors)
    description = {**dict.fromkeys(tensors, kind), "model.norm.weight": "FLOAT", "version": 1}
    (folder / "quant_model_description.json").write_text(json.dumps(description))
    _, problems = check(folder)
    if kind == "W8A8_DYNAMIC":
        assert ("scale-shape", f"{UP}.weight_scale") in {
            (one["code"], one["tensor"]) for one in problems
        }


@pytest.mark.parametrize("name", ["weight_scale", "weight_offset"])
def test_ascend_scales_are_floats(tmp_path: Path, name: str) -> None:
    tensors = stored(torch.ones(8, 1)) | {f"{UP}.weight_offset": torch.zeros(8, 1)}
    tensors[f"{UP}.{name}"] = tensors[f"{UP}.{name}"].to(torch.int8)
    folder = tiny.write(tmp_path / "m", tensors)
    description = {**dict.fromkeys(tensors, "W8A8_DYNAMIC"), "model.norm.weight": "FLOAT"}
    (folder / "quant_model_description.json").write_text(json.dumps(description))
    code, problems = check(folder)
    assert code == 1
    assert [(one["code"], one["tensor"]) for one in problems] == [("scale-dtype", f"{UP}.{name}")]


def test_names_without_a_dot_are_described_too(tmp_path: Path) -> None:
    """CLIP has a `logit_scale` of its own."""
    folder = tiny.write(tmp_path / "m", {"logit_scale": torch.tensor(1.0)})
    description = {"version": "1.0.0", "logit_scale": "FLOAT"}
    (folder / "quant_model_description.json").write_text(json.dumps(description))
    assert check(folder) == (0, [])


def test_what_no_description_names_is_said_so(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "m", stored(torch.ones(8, 1)))
    (folder / "quant_model_description.json").write_text('{"model.norm.weight": "FLOAT"}')
    code, problems = check(folder)
    assert code == 1
    assert not any("described as None" in one["message"] for one in problems)
