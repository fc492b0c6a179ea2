"""One .npy file a tensor, as the engines' numpy cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from loaders.checkpoint.manifest import Checkpoint, TensorSpec, WeightFile
from loaders.contract import Loader, Stamp
from loaders.io.readers import OpenFile, read_into
from loaders.io.tensors import dtype_of
from loaders.registry import register


@register
class NpCache(Loader):
    """np.load without mapping (vLLM 0.33, np_cache_weights_iterator): a fresh array for each
    tensor, filled by one read, seen as the tensor's true dtype."""

    name = "npcache"
    summary = "one .npy file per tensor, each read into fresh memory (engine's numpy cache)"
    formats = frozenset({"npcache"})
    ownership = "owned"

    def load(self, checkpoint: Checkpoint, stamp: Stamp) -> Iterator[tuple[str, torch.Tensor]]:
        files = {file.name: file for file in checkpoint.files}
        for spec in checkpoint.tensors:
            yield spec.name, _read(files[spec.file], spec, stamp)


def _read(file: WeightFile, spec: TensorSpec, stamp: Stamp) -> torch.Tensor:
    with stamp("allocate"):
        raw = torch.empty(spec.nbytes, dtype=torch.uint8)
    with stamp("open"):
        source = OpenFile(file.path)
    with source:
        # the manifest has no offset for an array in Fortran order, but its data ends the file
        start = file.size - spec.nbytes if spec.offset is None else spec.offset
        read_into(source, raw.numpy().data, start)
    values = raw.view(dtype_of(spec))
    if spec.offset is not None:
        return values.reshape(spec.shape)
    backwards = values.reshape(spec.shape[::-1])
    return backwards.permute(*reversed(range(backwards.dim()))).contiguous()
