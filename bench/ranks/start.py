"""torchrun, ended by the kernel when its runner ends, however that happened.

python -m bench.ranks.start PARENT_PID ARGUMENTS_OF_TORCHRUN...
"""

from __future__ import annotations

import sys

from bench.measuring.forkserver import die_with_parent


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    from torch.distributed.run import main as torchrun

    torchrun(sys.argv[2:])


if __name__ == "__main__":
    main()
