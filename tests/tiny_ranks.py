"""A tiny model in three files, and ranks that are threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.read import open_checkpoint
from tests.tiny import layout as layout_of
from tests.tiny import write_raw
from tests.tiny_plans import decoder


def tiny_model(folder: Path, *, files: int = 3, seed: int = 5, **given: Any) -> Checkpoint:
    """Random bytes in the shape of a decoder that 1, 2, 4 and 8 ranks can divide: 16 heads, 2
    key/value heads (kept by several ranks each), 1 MB."""
    sizes: dict[str, Any] = {
        "layers": 3, "hidden": 128, "heads": 16, "kv": 2, "dim": 8, "inter": 256, "vocab": 1000,
    }  # fmt: skip
    tensors, config = decoder(**(sizes | given))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    names = list(tensors)
    for number in range(files):
        mine = {name: ("BF16", tensors[name]) for name in names[number::files]}
        header, size = layout_of(mine)
        shard = folder / f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        write_raw(shard, header, random.bytes(size))
    return open_checkpoint(str(folder))


class Crowd:
    """A collective of threads: what `torch.distributed` does for processes."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._sent: dict[tuple[int, int], np.ndarray] = {}
        self._barrier = threading.Barrier(world)

    def exchange_of(self, rank: int) -> Callable[..., torch.Tensor]:
        def exchange(send: np.ndarray, to: list[int], of: list[int]) -> torch.Tensor:
            assert sum(to) == len(send)
            at = 0
            for keeper, size in enumerate(to):
                self._sent[rank, keeper] = send[at : at + size].copy()
                at += size
            self._barrier.wait(10)
            parts = [self._sent[reader, rank] for reader in range(self.world)]
            assert [len(part) for part in parts] == of
            self._barrier.wait(10)
            return torch.from_numpy(np.concatenate(parts))

        return exchange

    def run(self, act: Callable[[int], None]) -> None:
        """`act(rank)` in a thread each; the first error of any."""
        errors: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                act(rank)
            except BaseException as error:
                self._barrier.abort()
                errors.append(error)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        if real or errors:
            raise (real or errors)[0]


def by_hand(checkpoint: Checkpoint, world: int, rank: int) -> dict[str, torch.Tensor]:
    """Some parameters of a rank of the tiny decoder, by narrow and cat alone."""
    from safetensors import safe_open

    found: dict[str, torch.Tensor] = {}
    for file in checkpoint.files:
        with safe_open(file.path, "pt") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118

    def part(name: str, dim: int, ways: int = world, index: int = rank) -> torch.Tensor:
        size = found[name].shape[dim] // ways
        return found[name].narrow(dim, index * size, size)

    at = "model.layers.1."
    kv = min(world, 2)
    attention = f"{at}self_attn."
    return {
        f"{attention}qkv_proj.weight": torch.cat(
            [part(f"{attention}q_proj.weight", 0)]
            + [part(f"{attention}{x}_proj.weight", 0, kv, rank * kv // world) for x in "kv"]
        ),
        f"{attention}o_proj.weight": part(f"{attention}o_proj.weight", 1),
        f"{at}mlp.gate_up_proj.weight": torch.cat(
            [part(f"{at}mlp.{x}_proj.weight", 0) for x in ("gate", "up")]
        ),
        f"{at}mlp.down_proj.weight": part(f"{at}mlp.down_proj.weight", 1),
        "model.norm.weight": found["model.norm.weight"],
    }


def paths_of(checkpoint: Checkpoint) -> Sequence[Path]:
    return [Path(file.path) for file in checkpoint.files]
