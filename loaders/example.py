"""How to write a loader of one's own: copy this file, rename the class, change `load`.

That is all: nothing else in the tree changes. A loader outside the tree is named in its package's
entry points, group `coldload.loaders`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from loaders.checkpoint.manifest import Checkpoint
from loaders.contract import Loader, Stamp
from loaders.io.errors import TruncatedError
from loaders.io.tensors import by_file, tensor_over
from loaders.registry import register


@register
class Example(Loader):
    name = "example"  # as in --loader=example
    summary = "the teaching one: plain seek and readinto, tensor by tensor"
    formats = frozenset({"safetensors"})  # the checkpoints that it is offered
    ownership = "owned"  # ranked among loaders that give the same kind of memory
    # Also: `options` (name -> default, checked for you), `threaded` if self.threads matters to it,
    # `requires` (modules; where one is missing the loader is listed as skipped).

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        # The clock runs from the first next(). The manifest has every name, dtype, shape and
        # offset already, and was validated: parse nothing, guess nothing.
        for file, specs in by_file(checkpoint):
            with stamp("open"):  # what isn't stamped counts as reading
                opened = Path(file.path).open("rb")  # noqa: SIM115 - closed by the next with
            with opened:  # also when the consumer stops half-way
                for spec in specs:
                    with stamp("allocate"):
                        memory = bytearray(spec.nbytes)
                    opened.seek(spec.offset or 0)
                    got = opened.readinto(memory)
                    if got < spec.nbytes:
                        end = opened.tell()
                        raise TruncatedError(file.path, expected=end - got + spec.nbytes, found=end)
                    yield spec.name, tensor_over(memory, 0, spec)
