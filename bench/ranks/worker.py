"""One rank, as torchrun starts it: says who it is, joins the others, and loads when it is told.

    torchrun ... -m bench.ranks.worker SOCKET JOB

Over the socket it hears its runner: a case, `go`, `prove`, then the next case. It says `hello`,
`joined`, and for each case `ready`, `started`, a number for each exchange, `done` with its stamps
and counters, and the digests of what it holds; or `error`, and ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.measuring.channel import Channel, ClosedError
from bench.measuring.forkserver import die_with_parent


def main(address: str, job_path: str) -> int:
    die_with_parent(os.getppid())
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    channel = Channel(connection)
    rank = int(os.environ["RANK"])
    channel.send(
        {
            "hello": True,
            "rank": rank,
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
    )
    try:
        _serve(channel, job_path)
    except ClosedError:
        return 1  # the runner is gone
    except BaseException as error:
        print(f"rank {rank}:\n{''.join(traceback.format_exception(error))}", file=sys.stderr)
        peer = type(error).__name__ == "PeerError"
        channel.send({"error": f"{type(error).__name__}: {error}", "peer": peer})
        return 1
    return 0


def _serve(channel: Channel, job_path: str) -> None:
    import torch  # after the hello: a node's worth of imports takes a while

    from bench.ranks.collective import Collective
    from loaders.device.discover import open_device

    # What this very run's runner wrote into a folder of its own.
    job = pickle.loads(Path(job_path).read_bytes())
    torch.set_num_threads(job.threads)
    local = int(os.environ["LOCAL_RANK"])
    device = open_device("cpu" if job.kind == "cpu" else f"{job.kind}:{local}")
    together = Collective(device, job.timeout + 60)  # the runner's patience ends first
    said = together.all_say(job.fingerprint())
    if len(set(said)) > 1:
        other = next(rank for rank, text in enumerate(said) if text != said[0])
        raise ValueError(
            f"rank {other} was asked for something else than rank 0: give every node the same "
            "MODEL (the same files), --nproc, ways, --passes, --seed and --device"
        )
    together.warm_up()
    channel.send({"joined": True, "collective": together.name, "world": together.world})
    (parameters,) = job.parameters([together.rank])
    while True:
        message = channel.receive()
        if "end" in message:
            together.leave()
            return
        _one_case(channel, job, together, parameters, message["case"])
        gc.collect()


def _one_case(channel: Channel, job: Any, together: Any, parameters: Any, case: Any) -> None:
    from bench.measuring.child import Stopwatch, prepare
    from bench.measuring.counters import Meter, counters_of, memory, reset_peak
    from bench.ranks.job import digest
    from bench.ranks.ways import ACTS, STAMPS, Rank, kept_bytes

    prepare(job.touch_bytes, job.threads)
    watch = Stopwatch(STAMPS, rest="read")
    rank = Rank(
        job=job,
        together=together,
        parameters=parameters,
        at_round=lambda turn: channel.send({"round": turn}),
    )
    peak_reset = reset_peak()
    meter = Meter()
    before = meter.look()
    channel.send({"ready": True})
    channel.receive()
    together.barrier()
    began = time.monotonic()
    channel.send({"started": True})
    loaded = ACTS[case](rank, watch)
    ended = time.monotonic()
    spent = counters_of(meter.look()).since(counters_of(before))
    meter.close()
    channel.send(
        {
            "done": True,
            "began": began,
            "ended": ended,
            **watch.seconds(ended - began),
            "bytes": kept_bytes(parameters),
            "asked": loaded.asked,
            "notes": loaded.notes,
            "counters": asdict(spent),
            "peak_rss_bytes": memory().peak if peak_reset else None,
        }
    )
    channel.receive()  # digests would take the cores from ranks that still load
    named = zip(parameters, loaded.targets, strict=True)
    digests = {parameter.name: digest(target) for parameter, target in named}
    together.barrier()  # so that a case fails on every node or on none, and all go on alike
    channel.send({"digests": digests})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
