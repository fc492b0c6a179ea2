"""Reading straight to the parameters: what goes there without a stop, and that all of it is right
whatever the alignment."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_assembly import bytes_of

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from loaders.io.buffers import PAGE
from loaders.io.sources import DirectSource, PlainSource
from loaders.slicing.build import plan_rank
from loaders.slicing.copies import Copy
from loaders.slicing.execute import raw
from loaders.slicing.fetch import fetches
from loaders.slicing.model import model_of
from loaders.slicing.plan import Degrees, Parameter
from loaders.slicing.sliced_read import read_only, read_sliced
from loaders.slicing.straight import SHORTEST, around, leanings, placed, straight_run

HIDDEN, MIDDLE = 256, 1024


def written(folder: Path, pads: tuple[int, int], dtype: torch.dtype) -> Checkpoint:
    """An MLP of two fused matrices in two files whose data begin at these remainders."""
    folder.mkdir()
    draw = torch.Generator().manual_seed(3)
    size = torch.empty((), dtype=dtype).element_size()
    shapes = {
        "model.layers.0.mlp.gate_proj.weight": (MIDDLE, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "model.layers.0.mlp.up_proj.weight": (MIDDLE, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, MIDDLE),
    }
    names = list(shapes)
    for number, (own, pad) in enumerate(zip((names[:2], names[2:]), pads, strict=True)):
        header, at, body = {}, 0, b""
        for name in own:
            data = torch.randint(0, 256, (*shapes[name], size), generator=draw, dtype=torch.uint8)
            raw_bytes = data.numpy().tobytes()
            header[name] = {
                "dtype": {2: "BF16", 4: "F32"}[size],
                "shape": list(shapes[name]),
                "data_offsets": [at, at + len(raw_bytes)],
            }
            at, body = at + len(raw_bytes), body + raw_bytes
        text = json.dumps(header).encode()
        text += b" " * ((pad - 8 - len(text)) % PAGE)
        file = folder / f"model-0000{number + 1}-of-00002.safetensors"
        file.write_bytes(len(text).to_bytes(8, "little") + text + body)
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 1,
        "num_attention_heads": 4, "intermediate_size": MIDDLE, "vocab_size": 64,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(str(folder))


def planned(checkpoint: Checkpoint, tp: int, rank: int) -> list[Parameter]:
    return list(plan_rank(model_of(checkpoint), Degrees(tp=tp), rank).parameters)


def by_hand(checkpoint: Checkpoint, tp: int, rank: int) -> dict[str, bytes]:
    from safetensors.torch import load_file

    have = {name: one for file in checkpoint.files for name, one in load_file(file.path).items()}
    at = "model.layers.0.mlp."
    fused = [have[f"{at}{part}_proj.weight"].chunk(tp, 0)[rank] for part in ("gate", "up")]
    found = {
        "model.norm.weight": have["model.norm.weight"],
        f"{at}gate_up_proj.weight": torch.cat(fused),
        f"{at}down_proj.weight": have[f"{at}down_proj.weight"].chunk(tp, 1)[rank],
    }
    return {
        name: one.contiguous().view(torch.uint8).numpy().tobytes() for name, one in found.items()
    }


@pytest.mark.parametrize("pads", [(8, 8), (0, 0), (8, 520), (1032, 4088)])
@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("source", [DirectSource, lambda path: PlainSource(path, direct=False)])
def test_parameters_are_right_at_every_remainder(
    tmp_path: Path, pads: tuple[int, int], tp: int, rank: int, dtype: torch.dtype, source
) -> None:
    checkpoint = written(tmp_path / "model", pads, dtype)
    parameters = planned(checkpoint, tp, rank)
    plan = fetches(checkpoint, parameters)
    targets = placed(plan, parameters)
    for block in (64 << 10, 1 << 20):
        for target in targets:
            target.zero_()
        read_sliced(
            checkpoint, parameters, [raw(one) for one in targets], threads=3, block_bytes=block,
            open_source=source,
        )  # fmt: skip
        assert bytes_of(parameters, targets) == by_hand(checkpoint, tp, rank)


def test_most_bytes_take_no_stop(tmp_path: Path) -> None:
    checkpoint = written(tmp_path / "model", (8, 8), torch.bfloat16)
    parameters = planned(checkpoint, 1, 0)
    targets = placed(fetches(checkpoint, parameters), parameters)
    spans = [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in targets]
    straight: list[int] = []
    lock = threading.Lock()

    class Watched(DirectSource):
        def read(self, into: memoryview, offset: int, needed: int) -> None:
            address = torch.frombuffer(into, dtype=torch.uint8).data_ptr()
            assert (offset % PAGE, address % PAGE) == (0, 0), "from a page to a page"
            if any(low <= address < high for low, high in spans):
                with lock:
                    straight.append(needed)
            super().read(into, offset, needed)

    into = [raw(one) for one in targets]
    read_sliced(checkpoint, parameters, into, threads=2, open_source=Watched)
    assert sum(straight) > 0.95 * checkpoint.tensor_bytes
    straight.clear()
    read_only(checkpoint, parameters, threads=2, open_source=Watched)
    assert straight == []


def copy_of(source: int, target: int, length: int, count: int = 1) -> Copy:
    return Copy(
        tensor="t", parameter=0, source=source, target=target, length=length,
        source_stride=length * 2, target_stride=length, count=count,
    )  # fmt: skip


@given(
    st.integers(0, 1 << 22), st.integers(0, 1 << 22), st.integers(1, 1 << 21),
    st.integers(0, 1 << 30), st.booleans(),
)  # fmt: skip
def test_a_straight_run_and_what_lies_around_it_are_the_copy(
    source: int, target: int, length: int, offset: int, fits: bool
) -> None:
    copy = copy_of(source, target, length)
    address = (offset + source - target) % PAGE + (1 << 40) + (0 if fits else 8)
    run = straight_run(copy, offset, address)
    begin = offset + source
    if not fits:
        assert run is None
    if run is None:
        pages = max(0, (begin + length) // PAGE - -(-begin // PAGE)) * PAGE
        assert not fits or pages < SHORTEST
        return
    low, high = run
    assert low % PAGE == high % PAGE == 0
    assert (address + target + low - begin) % PAGE == 0
    parts = list(around(copy, low - offset, high - offset))
    covered = sorted(
        [(low - offset, high - offset), *((p.source, p.source + p.length) for p in parts)]
    )
    assert covered[0][0] == source
    assert covered[-1][1] == source + length
    assert all(one[1] == other[0] for one, other in pairwise(covered))
    assert all(part.target - part.source == target - source for part in parts)


def test_rows_that_lie_apart_are_never_straight() -> None:
    assert straight_run(copy_of(0, 0, 1 << 20, count=2), 0, 1 << 40) is None


def test_a_remainder_that_doesnt_suit_the_dtype_isnt_taken(tmp_path: Path) -> None:
    checkpoint = written(tmp_path / "model", (10, 12), torch.float32)
    parameters = planned(checkpoint, 1, 0)
    leaning = dict(
        zip(
            (one.name for one in parameters),
            leanings(fetches(checkpoint, parameters), parameters),
            strict=True,
        )
    )
    assert leaning["model.norm.weight"] == 0
    assert leaning["model.layers.0.mlp.down_proj.weight"] == 12
