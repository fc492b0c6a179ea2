"""The shapes in datasets/: what tensors a published checkpoint has, as rules over a few dimensions.

A shape's file is data. `[dims]` names its dimensions, `[[rules]]` its tensors: a rule has a
`prefix`, optionally half-open ranges `layers` and `experts` for which it is repeated (`{layer}` and
`{expert}` in the prefix), and `tensors`, each with `name`, `shape` (expressions over the dims) and
    linear    true for a weight that fp8 checkpoints quantise (then a float32 `NAME_scale_inv` with
              one scale for each 128x128 block follows it)
    dtype     where it is not the shape's
    same_as   the tensor that holds the same numbers (tied weights that the file stores twice)
`[config]` and `[config_dims]` make config.json, `[published]` says what the real checkpoint holds
and who says so. Scaling knows the dims by name (bench/synth/scale.py lists those that it changes).

Apart from reading the file, everything here is arithmetic.
"""

from __future__ import annotations

import difflib
import itertools
import math
import operator
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from bench.synth.dims import DimensionError, evaluate
from loaders.checkpoint.dtypes import itemsize

FOLDER = Path(__file__).resolve().parents[2] / "datasets"
FP8 = "float8_e4m3fn"
FP8_BLOCK = 128
SCALE = "_scale_inv"  # what a scale's name has after that of its weight
DTYPES = ("bfloat16", "float16", "float32", FP8)


class ShapeError(ValueError):
    """No such shape, or a shape's file that can't be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRule:
    """Tensors of one name pattern. `layers` and `experts` are half-open ranges of expressions."""

    name: str
    shape: tuple[str, ...]
    layers: tuple[str, str] | None
    experts: tuple[str, str] | None
    linear: bool
    dtype: str | None
    same_as: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the real checkpoint holds. `parameters` is the model card's figure: main model only,
    tied weights once, no scales; `elements` counts by dtype everything that the files store."""

    parameters: int
    elements: Mapping[str, int]
    tensors: int
    shards: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's shape. `linear_dtype` is the dtype of linear weights, `dtype` that of the rest.
    `kinds` are the rules without their names, each with how many there are: to count bytes, which
    scaling does some hundred times, a shape that lists 100,000 tensors one by one is a few kinds.
    """

    name: str
    summary: str
    repo: str
    dtype: str
    linear_dtype: str
    dims: Mapping[str, int]
    rules: tuple[TensorRule, ...]
    kinds: Mapping[TensorRule, int]
    config: Mapping[str, Any]
    config_dims: Mapping[str, str]
    published: Published


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeTensor:
    """One tensor to be. `content` is the name that seeds its bytes: its own, or that of the tensor
    it is tied to."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * itemsize(self.dtype)


def shape_names() -> tuple[str, ...]:
    """The names of the built-in shapes, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def load_shape(name: str) -> Shape:
    """The built-in shape of that name, as published. ShapeError if there is none (with the names
    and the nearest one) or if its file is faulty."""
    names = shape_names()
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        known = ", ".join(names) or f"none ({FOLDER} holds no TOML file)"
        raise ShapeError(f"no shape is named {name!r}.{hint} There are: {known}")
    path = FOLDER / f"{name}.toml"
    try:
        return parse_shape(name, path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, DimensionError) as error:
        raise ShapeError(f"{path}: {type(error).__name__}: {error}") from error


def parse_shape(name: str, text: str) -> Shape:
    """The shape that a TOML text describes. tomllib.TOMLDecodeError, KeyError for an absent field,
    TypeError for an unknown one, DimensionError for a bad expression."""
    data = tomllib.loads(text)
    nulls: dict[str, Any] = dict.fromkeys(data.get("config_null", []))
    rules = tuple(itertools.chain.from_iterable(_rules(**rule) for rule in data["rules"]))
    shape = Shape(
        name=name,
        summary=data["summary"],
        repo=data["repo"],
        dtype=data["dtype"],
        linear_dtype=data.get("linear_dtype", data["dtype"]),
        dims=data["dims"],
        rules=rules,
        kinds=Counter(replace(rule, name="", same_as=None) for rule in rules),
        config={**data["config"], **nulls},
        config_dims=data["config_dims"],
        published=Published(**data["published"]),
    )
    config_of(shape)
    tensor_bytes(shape)
    return shape


def _rules(
    tensors: list[dict[str, Any]],
    prefix: str = "",
    layers: list[str] | None = None,
    experts: list[str] | None = None,
) -> Iterator[TensorRule]:
    for tensor in tensors:
        given = {"linear": False, "dtype": None, "same_as": None, **tensor}
        given |= {"name": prefix + tensor["name"], "shape": tuple(tensor["shape"])}
        yield TensorRule(layers=_range(layers), experts=_range(experts), **given)


def _range(ends: list[str] | None) -> tuple[str, str] | None:
    return None if ends is None else (ends[0], ends[1])


def with_dtype(shape: Shape, dtype: str | None) -> Shape:
    """The shape stored in another dtype; None leaves it as it is published.

    fp8 quantises the linear weights only, with block scales, as DeepSeek-V3 and the FP8 releases
    of Qwen3 do; the rest keeps the shape's dtype. Any other dtype applies to all weights, and a
    published fp8 shape then has no scales. ShapeError for a dtype that isn't in DTYPES.
    """
    if dtype is None:
        return shape
    if dtype not in DTYPES:
        raise ShapeError(f"dtype {dtype!r} can't be made; these can: {', '.join(DTYPES)}")
    rest = shape.dtype if dtype == FP8 else dtype
    return replace(shape, dtype=rest, linear_dtype=dtype)


def expand(shape: Shape) -> tuple[ShapeTensor, ...]:
    """Every tensor of the shape, in the order of its rules, layer by layer."""
    return tuple(
        tensor
        for rule, layer, expert in _instances(shape)
        for tensor in _tensors(shape, rule, layer, expert)
    )


def _instances(shape: Shape) -> Iterator[tuple[TensorRule, int | None, int | None]]:
    """Rules that follow each other and have layers go layer by layer, not rule by rule: so that a
    layer's tensors lie together in the files, as they do in published checkpoints."""
    for layered, group in itertools.groupby(shape.rules, lambda rule: rule.layers is not None):
        rules = tuple(group)
        if not layered:
            yield from ((rule, None, None) for rule in rules)
            continue
        by_layer: defaultdict[int, list[TensorRule]] = defaultdict(list)
        for rule in rules:
            for layer in _span(rule.layers, shape.dims):
                by_layer[layer].append(rule)
        for layer, here in sorted(by_layer.items(), key=operator.itemgetter(0)):
            # Expert by expert, where neighbouring rules have experts.
            for experts, some in itertools.groupby(here, lambda rule: rule.experts):
                block = tuple(some)
                indices = [None] if experts is None else _span(experts, shape.dims)
                yield from ((rule, layer, expert) for expert in indices for rule in block)


def _span(ends: tuple[str, str] | None, dims: Mapping[str, int]) -> range:
    return range(1) if ends is None else range(evaluate(ends[0], dims), evaluate(ends[1], dims))


def _tensors(
    shape: Shape, rule: TensorRule, layer: int | None, expert: int | None
) -> Iterator[ShapeTensor]:
    name = rule.name.replace("{layer}", str(layer)).replace("{expert}", str(expert))
    for suffix, dtype, sizes in _stored(shape, rule):
        content = (rule.same_as or name) + suffix
        yield ShapeTensor(name=name + suffix, dtype=dtype, shape=sizes, content=content)


def _stored(shape: Shape, rule: TensorRule) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """What a rule stores for each of its instances: suffix of the name, dtype, sizes."""
    sizes = tuple(evaluate(size, shape.dims) for size in rule.shape)
    dtype = rule.dtype or (shape.linear_dtype if rule.linear else shape.dtype)
    yield "", dtype, sizes
    if rule.linear and dtype == FP8:
        # Source: README_WEIGHTS.md of DeepSeek-V3; partial blocks have a scale too.
        yield SCALE, "float32", tuple(-(-size // FP8_BLOCK) for size in sizes)


def elements(shape: Shape) -> dict[str, int]:
    """Stored elements by dtype, tied and MTP weights and scales included, without expanding."""
    totals: dict[str, int] = {}
    for rule, alike in shape.kinds.items():
        count = alike * len(_span(rule.layers, shape.dims)) * len(_span(rule.experts, shape.dims))
        for _, dtype, sizes in _stored(shape, rule):
            totals[dtype] = totals.get(dtype, 0) + count * math.prod(sizes)
    return totals


def tensor_bytes(shape: Shape) -> int:
    """Bytes of all tensors of the shape."""
    return sum(count * itemsize(dtype) for dtype, count in elements(shape).items())


def parameters(shape: Shape) -> int:
    """Parameters as model cards count them: the layers of the main model only (an MTP layer comes
    after them), tied weights once, no quantisation scales."""
    main = range(shape.dims["layers"])
    total = 0
    for rule in shape.rules:
        if rule.same_as is not None and rule.layers is None:
            continue
        layers = len([layer for layer in _span(rule.layers, shape.dims) if layer in main])
        _, _, sizes = next(_stored(shape, rule))
        total += layers * len(_span(rule.experts, shape.dims)) * math.prod(sizes)
    return total


def config_of(shape: Shape) -> dict[str, Any]:
    """config.json of the shape as it is scaled and stored."""
    dims = {field: evaluate(text, shape.dims) for field, text in shape.config_dims.items()}
    config: dict[str, Any] = {**shape.config, **dims, "torch_dtype": shape.dtype}
    for field in ("bos_token_id", "eos_token_id"):
        # A scaled vocabulary has no room for the published ids, and an engine may check that.
        if config.get(field, 0) >= shape.dims["vocab"]:
            config[field] = shape.dims["vocab"] - 1
    if shape.linear_dtype == FP8:
        config["quantization_config"] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        }
    return dict(sorted(config.items()))
