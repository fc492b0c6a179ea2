"""`coldload check` of the values that scales have: those that no engine complains of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from bench.cli import main
from loaders.checkpoint.manifest import TensorSpec
from loaders.checkpoint.scale_values import problems_of
from tests import tiny_quantised as tiny

SCALE = f"{tiny.LAYER}.mlp.gate_proj.weight_scale"


def check(
    tmp_path: Path, scale: torch.Tensor, name: str = SCALE
) -> tuple[int, list[dict[str, str]]]:
    folder = tiny.write(tmp_path / "m", {**tiny.model(), name: scale}, config=tiny.CONFIG)
    done = CliRunner().invoke(main, ["check", str(folder), "--json"])
    found = json.loads(done.stdout)["problems"]
    return done.exit_code, [one for one in found if one["code"] == "scale-value"]


def with_value(value: float, dtype: torch.dtype) -> torch.Tensor:
    scale = torch.full((6, 1), 0.01, dtype=dtype)
    scale[4] = value
    return scale


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "found 1 not a number of 6, the first at 4 (nan)"),
        (float("inf"), "found 1 infinite of 6, the first at 4 (inf)"),
        (-0.5, "found 1 negative of 6, the first at 4 (-0.5)"),
    ],
)
def test_values_that_spoil_a_channel(
    value: float, said: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    code, (problem,) = check(tmp_path, with_value(value, dtype))
    assert code == 1
    assert problem["tensor"] == SCALE
    assert problem["severity"] == "error"
    assert said in problem["message"]


def test_a_channel_that_vanishes_is_a_warning(tmp_path: Path) -> None:
    code, (problem,) = check(tmp_path, with_value(0.0, torch.bfloat16))
    assert code == 0
    assert problem["severity"] == "warning"
    assert "found 1 zero of 6, the first at 4 (0)" in problem["message"]


def test_a_negative_infinity_is_both(tmp_path: Path) -> None:
    _, (problem,) = check(tmp_path, with_value(float("-inf"), torch.float32))
    assert "1 infinite, 1 negative of 6" in problem["message"]


@pytest.mark.parametrize("value", [1e-30, 1.0, 3e38])
def test_any_positive_number_will_do(value: float, tmp_path: Path) -> None:
    assert check(tmp_path, with_value(value, torch.bfloat16))[1] == []


def test_static_scales_are_one_number(tmp_path: Path) -> None:
    code, (problem,) = check(
        tmp_path, torch.tensor(float("nan")), f"{tiny.LAYER}.mlp.gate_proj.input_scale"
    )
    assert code == 1
    assert "found 1 not a number of 1" in problem["message"]


def test_a_file_that_is_gone_by_then_is_named(tmp_path: Path) -> None:
    spec = TensorSpec(
        name=SCALE, dtype="float32", shape=(1,), file="gone.safetensors", offset=8, nbytes=4
    )
    (problem,) = problems_of(str(tmp_path), spec)
    assert (problem.code, problem.file, problem.severity) == (
        "unreadable",
        "gone.safetensors",
        "error",
    )
