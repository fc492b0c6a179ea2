"""The engines' own snapshot: one rank's parameters in safetensors files, mapped."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from loaders.checkpoint.listing import natural
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.names import rank_of
from loaders.contract import Loader, Stamp
from loaders.io.errors import LoadError
from loaders.registry import register
from loaders.safetensors_mmap import map_tensors
from loaders.snapshot.card import NAME, read_card, unlike
from loaders.snapshot.engine_state import can_be_sharded
from loaders.snapshot.format import HeaderError


@register
class ShardedState(Loader):
    """What vLLM 0.32 does with `--load-format sharded_state`: each rank maps its own files,
    `model-rank-<rank>-part-<part>.safetensors`, and copies views of them into its parameters. They
    are ordinary safetensors, so that `direct` and the others read them as well."""

    name = "sharded-state"
    summary = "lazy mapping of one rank's model-rank-N-part-M.safetensors (vLLM's sharded_state)"
    formats = frozenset({"safetensors"})
    ownership = "mapped"
    requires = ("safetensors",)

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        """Files of other names, or by the card beside them of another rank, or not all of them."""
        strangers = [file.name for file in checkpoint.files if rank_of(file.name) is None]
        if strangers:
            first = min(strangers, key=natural)
            wanted = f"expected model-rank-<rank>-part-<part>.safetensors, found {first}"
            if not can_be_sharded(checkpoint):
                return wanted
            return f"{wanted}; `coldload snapshot --format sharded-state` makes such files"
        return _fault_by_card(checkpoint)

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        reason = _fault_by_card(checkpoint)
        if reason is not None:
            raise LoadError(f"{checkpoint.origin}: {reason}")
        return map_tensors(checkpoint, stamp)


def _fault_by_card(checkpoint: Checkpoint) -> str | None:
    """What contradicts the card that lies beside the files; None where none lies there."""
    try:
        card = read_card(checkpoint.root)
    except (HeaderError, OSError) as error:
        return f"{NAME}: {error}; delete it, or make the files again"
    return unlike(checkpoint, card) if card is not None else None
