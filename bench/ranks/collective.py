"""Ranks that talk to each other: joining, meeting at a barrier, exchanging bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from loaders.device.interface import Device
from loaders.slicing.execute import Raw

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""torch.distributed's name of each kind of device's collective library."""

TITLES = {"gloo": "gloo", "nccl": "NCCL", "hccl": "HCCL"}


class PeerError(RuntimeError):
    """A collective failed here: mostly because another rank is gone."""


class Collective:
    """The ranks of this run. What they agree on goes over gloo, weights over the device's own
    library. PeerError where others don't answer."""

    def __init__(self, device: Device, timeout: float) -> None:
        self.device = device
        backend = BACKENDS[device.kind]
        both = "gloo" if backend == "gloo" else f"cpu:gloo,{device.kind}:{backend}"
        with _lost():
            dist.init_process_group(both, timeout=timedelta(seconds=timeout))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.name = TITLES[backend]

    def barrier(self) -> None:
        """Waits for everybody, over gloo also where there are devices: nothing is queued there."""
        with _lost():
            dist.all_reduce(torch.zeros(1))

    def exchange(self, send: Raw, to: list[int], of: list[int]) -> torch.Tensor:
        """See loaders.slicing.scatter.Exchange."""
        outgoing = torch.from_numpy(send).to(self.device.torch_device)
        incoming = torch.empty(sum(of), dtype=torch.uint8, device=self.device.torch_device)
        with _lost():
            dist.all_to_all_single(incoming, outgoing, of, to)
        return incoming

    def all_say(self, text: str) -> list[str]:
        """What each rank says, by rank; at most 64 letters of ASCII."""
        mine = torch.zeros(64, dtype=torch.uint8)
        mine[: len(text)] = torch.tensor(list(text.encode()), dtype=torch.uint8)
        every = [torch.empty(64, dtype=torch.uint8) for _ in range(self.world)]
        with _lost():
            dist.all_gather(every, mine)
        return [bytes(one.tolist()).rstrip(b"\0").decode() for one in every]

    def warm_up(self) -> None:
        """The first exchange makes connections, which no sample shall pay for."""
        of = [1] * self.world
        self.exchange(torch.zeros(self.world, dtype=torch.uint8).numpy(), of, of)
        self.device.synchronize()

    def leave(self) -> None:
        dist.destroy_process_group()


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        said = next(iter(str(error).splitlines()), "")
        raise PeerError(f"the collective failed: {said}") from error
