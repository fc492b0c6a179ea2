"""The engines' own snapshot: one rank's parameters in safetensors files, mapped."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from loaders.checkpoint.listing import natural
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.names import rank_of
from loaders.contract import Loader, Stamp
from loaders.registry import register
from loaders.safetensors_mmap import map_tensors


@register
class ShardedState(Loader):
    """What vLLM 0.33 does with `--load-format sharded_state`: each rank maps its own files,
    `model-rank-<rank>-part-<part>.safetensors`, and copies views of them into its parameters. They
    are ordinary safetensors, so that `direct` and the others read them as well."""

    name = "sharded-state"
    summary = "lazy mapping of one rank's model-rank-N-part-M.safetensors (vLLM's sharded_state)"
    formats = frozenset({"safetensors"})
    ownership = "mapped"
    requires = ("safetensors",)

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        strangers = [file.name for file in checkpoint.files if rank_of(file.name) is None]
        if not strangers:
            return None
        first = min(strangers, key=natural)
        return (
            f"expected model-rank-<rank>-part-<part>.safetensors, found {first}; "
            "`coldload snapshot --format sharded-state` makes such files"
        )

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        return map_tensors(checkpoint, stamp)
