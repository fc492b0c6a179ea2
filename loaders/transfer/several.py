"""Several devices at once from one host: they share its memory and its links."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from loaders.device.identity import identity
from loaders.device.interface import Device
from loaders.device.numa import bindable, bound_to
from loaders.system.files import Root
from loaders.transfer.values import HostTensors, Options, Transfer
from loaders.transfer.ways import Way


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """`each`: one transfer for each device, in the order given. `nbytes`: of all together.
    `seconds`: by the host's clock, from the first copy of the first device to the synchronising of
    the last. `bound`: for each, whether its thread was bound to the cores of its NUMA node."""

    each: tuple[Transfer, ...]
    nbytes: int
    seconds: float
    bound: tuple[bool, ...]
    notes: tuple[str, ...] = ()


def transfer_to_all(
    devices: Sequence[Device],
    host: HostTensors,
    way: Way,
    options: Options,
    *,
    bind: bool,
    root: Root = "/",
) -> Several:
    """The same host tensors to every device, a thread for each. All are prepared (memory, pinning)
    before any starts, and `options.ready` is called once then. With `bind` a thread runs, and what
    it pins lies, at its device's node; where the node isn't known it isn't bound, and a note says
    so. ValueError without a device; else the first error of any of them."""
    if not devices:
        raise ValueError("no device to copy to")
    gate = threading.Barrier(len(devices), action=options.ready)
    cores: list[frozenset[int]] = []
    notes: list[str] = []
    for device in devices:
        found, reason = bindable(identity(device, root).numa_node, root) if bind else _unbound()
        cores.append(found)
        if reason is not None:
            notes.append(f"{device.text}: not bound: {reason}")

    def one(number: int) -> Transfer:
        try:
            with bound_to(cores[number]):
                return way(devices[number], host, replace(options, ready=lambda: _pass(gate)))
        except BaseException:
            gate.abort()  # or the others would wait for this one for ever
            raise

    with ThreadPoolExecutor(max_workers=len(devices), thread_name_prefix="device") as pool:
        futures = [pool.submit(one, number) for number in range(len(devices))]
        errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        own = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        raise (own or errors)[0]
    each = tuple(future.result() for future in futures)
    return Several(
        each=each,
        nbytes=sum(transfer.nbytes for transfer in each),
        seconds=max(one.ended for one in each) - min(one.started for one in each),
        bound=tuple(bool(found) for found in cores),
        notes=tuple(notes),
    )


def _unbound() -> tuple[frozenset[int], None]:
    return frozenset(), None


def _pass(gate: threading.Barrier) -> None:
    gate.wait()  # how many have come is nobody's affair
