"""A shape of very many tiny tensors: the work grows with their number, not with its square."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.synth import shapes, write
from bench.synth.scale import ScaleError, scale
from bench.synth.shapes import Shape, expand, parse_shape, tensor_bytes
from loaders.checkpoint.read import open_checkpoint

HEAD = """
summary = "many tiny tensors"
repo = "org/many"
dtype = "bfloat16"
config_dims = {{ hidden_size = "hidden" }}
config = {{}}
dims = {{ layers = {layers}, hidden = 64, heads = 1, kv_heads = 1, head_dim = 64,
  intermediate = 64, vocab = 256 }}
published = {{ parameters = 1, tensors = 1, shards = 1, source = "made up", elements = {{}} }}
"""
COUNT = 10_000


def flat(count: int) -> Shape:
    """Every tensor listed by itself, without layers."""
    lines = [f'{{ name = "t{number}", shape = ["hidden"] }}' for number in range(count)]
    head = HEAD.format(layers=1).replace("\n  ", " ")
    return parse_shape("many", f"{head}[[rules]]\ntensors = [{', '.join(lines)}]")


def one_by_one(layers: int) -> Shape:
    """A rule for each layer by itself, as a converter would write it."""
    head = HEAD.format(layers=layers).replace("\n  ", " ")
    rules = [
        f'[[rules]]\nprefix = "l{{layer}}."\nlayers = ["{number}", "{number + 1}"]\n'
        'tensors = [{ name = "w", shape = ["hidden"] }, { name = "b", shape = ["8"] }]'
        for number in range(layers)
    ]
    return parse_shape("many", "\n".join([head, *rules]))


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The dimensions that are looked up, one after another."""
    asked: list[str] = []
    evaluate = shapes.evaluate

    def counted(expression: str, dims: Mapping[str, int]) -> int:
        asked.append(expression)
        return evaluate(expression, dims)

    monkeypatch.setattr(shapes, "evaluate", counted)
    return asked


def test_scaling_takes_the_same_work_for_any_number_of_tensors(evaluated: list[str]) -> None:
    work = []
    for count in (10, COUNT):
        shape = flat(count)
        evaluated.clear()
        assert tensor_bytes(scale(shape, None)) == count * 128
        with pytest.raises(ScaleError, match="can't be smaller"):
            scale(shape, count * 64)
        work.append(len(evaluated))
    assert work[0] == work[1]


def test_expanding_looks_each_tensor_up_once(evaluated: list[str]) -> None:
    shape = flat(COUNT)
    evaluated.clear()
    assert len({tensor.name for tensor in expand(shape)}) == COUNT
    assert len(evaluated) <= 2 * COUNT


def test_a_rule_for_each_layer_is_expanded_layer_by_layer(evaluated: list[str]) -> None:
    shape = one_by_one(3000)
    evaluated.clear()
    names = [tensor.name for tensor in expand(shape)]
    assert names == [f"l{layer}.{name}" for layer in range(3000) for name in ("w", "b")]
    assert len(evaluated) <= 4 * len(names)


def test_very_many_tensors_are_made_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "load_shape", lambda name: flat(2000))
    made = write.make_checkpoint(
        "many", tmp_path / "m", size=None, shards=4, format="safetensors", dtype=None, seed=0,
        progress=lambda done, total: None,
    )  # fmt: skip
    assert made.tensors == 2000
    checkpoint = open_checkpoint(tmp_path / "m")
    assert checkpoint.tensor_bytes == 2000 * 128
