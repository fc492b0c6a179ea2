"""What the simulated device is like. From the environment, so that children have it, too; a test
may change `settings` in its own process.

SIMULATED_NPU_DEVICES   how many there are (1)
SIMULATED_NPU_RATE      bytes a second of each one's link; 0: as fast as it goes (0)
SIMULATED_NPU_MEMORY    bytes of each one (1 GiB)
SIMULATED_NPU_FAIL      what fails at which try, counted from 1: "allocate:3,pin:1,copy:2,lost:4"
                        ("lost": the copy is queued, fails later, and the device with it);
                        "pin:hang" never answers
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field


@dataclass
class Settings:
    devices: int = 1
    rate: float = 0.0
    memory: int = 1 << 30
    fail: dict[str, str] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)

    def fails(self, what: str) -> bool:
        """Counts a try; whether it is the one that fails."""
        with _lock:
            self.tries[what] = self.tries.get(what, 0) + 1
            return self.fail.get(what) == str(self.tries[what])

    def reset(self) -> None:
        """As the environment says, with nothing counted."""
        fresh = from_environment()
        self.devices, self.rate, self.memory = fresh.devices, fresh.rate, fresh.memory
        self.fail, self.tries = fresh.fail, {}


_lock = threading.Lock()


def from_environment() -> Settings:
    def number(name: str, default: int) -> int:
        return int(os.environ.get(f"SIMULATED_NPU_{name}", default))

    pairs = [pair for pair in os.environ.get("SIMULATED_NPU_FAIL", "").split(",") if pair]
    return Settings(
        devices=number("DEVICES", 1),
        rate=number("RATE", 0),
        memory=number("MEMORY", 1 << 30),
        fail=dict(pair.split(":") for pair in pairs),
    )


settings = from_environment()
