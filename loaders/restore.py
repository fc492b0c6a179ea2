"""Our own: the assembled state read straight back from a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.snapshot_file import other_layout
from loaders.contract import OptionValue, Rows, Stamp, Tunable
from loaders.direct import Direct
from loaders.io.errors import LoadError
from loaders.registry import register


@register
class Snapshot(Direct):
    """As `direct` with `rows`, from a file in which one rank's parameters lie as an engine holds
    them, each from a page on: sliced, fused, and where that was asked for quantised and in the
    device's layout. Nothing is left to be done but reading. `tp` is the degree that the file must
    have been made for; 0 takes it as it is."""

    name = "snapshot"
    summary = "one rank's assembled state, read directly through a small ring (its own format)"
    formats = frozenset({"snapshot"})
    options: ClassVar[Mapping[str, OptionValue]] = {**Direct.options, "rows": True, "tp": 0}
    variants = ({},)  # type: ignore[assignment]  # direct has two, which types the attribute so

    def __init__(self, threads: int = 1, **given: OptionValue) -> None:
        super().__init__(threads, **given)
        self.require_not_negative("tp")

    @classmethod
    def tunable_with(cls, options: Mapping[str, OptionValue]) -> frozenset[Tunable]:
        return super().tunable_with({"rows": cls.options["rows"], **options})

    def refuses(self, checkpoint: Checkpoint) -> str | None:
        tp = int(self.settings["tp"])
        if checkpoint.facts is None or not tp:
            return None
        return other_layout(checkpoint.facts, {"tp": tp})

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        self._begin(checkpoint)
        return super().load(checkpoint, stamp)

    def load_rows(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[Rows]:
        self._begin(checkpoint)
        return super().load_rows(checkpoint, stamp)

    def _begin(self, checkpoint: Checkpoint) -> None:
        """LoadError for a snapshot of another layout; tells what making this one took, so that a
        run's records can say when it has paid."""
        reason = self.refuses(checkpoint)
        if reason is not None:
            raise LoadError(f"{checkpoint.origin}: {reason}")
        if checkpoint.facts is not None:
            self.counts["made_ms"] = round(1000 * checkpoint.facts["made"]["seconds"])
            self.counts["file_bytes"] = checkpoint.file_bytes
