"""What differs between releases of an engine: one row of facts, found by the version asked for.

Source: vLLM's releases 0.4.2 to 0.33.0. "Since" is the first of the releases looked at that has
it. vllm-ascend counts as the vLLM of the same number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from loaders.checkpoint.text import quoted
from loaders.slicing.errors import PlanError

DEFAULT = "vllm-0.33"

_NAME = re.compile(r"vllm(-ascend)?-v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(?:post|rc|dev)\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`remainder`: who gets the experts that are left over, the first ranks one each ("spread") or
    all of them the last rank ("last"). `ep_filter`: whether it can skip other ranks' experts when
    reading. `kv`: whose formula sizes the KV pool. `rounds_up`: whether total x utilisation is
    rounded up; `tokens_by_length`: whether the tokens it prints are concurrency x length."""

    name: str
    version: tuple[int, int, int]
    remainder: Literal["spread", "last"]
    round_robin: bool
    ep_filter: bool
    kv: Literal["v0", "v1"]
    rounds_up: bool
    tokens_by_length: bool


def engine_of(text: str) -> Engine:
    """The facts of "vllm-0.33", "vllm-0.9.2" or "vllm-ascend-0.11". PlanError for anything else."""
    match = _NAME.fullmatch(text.strip().lower())
    if match is None:
        raise PlanError(
            f"engine: expected vllm-VERSION or vllm-ascend-VERSION, as in {DEFAULT} or vllm-0.9, "
            f"found {quoted(text)}"
        )
    version = (int(match[2]), int(match[3]), int(match[4] or 0))
    return Engine(
        name=text.strip().lower(),
        version=version,
        # Last in 0.8.5 to 0.9.2, spread in 0.10.2; the change is vLLM's PR 21497, after 0.10.0.
        remainder="spread" if version >= (0, 10, 1) else "last",
        round_robin=version >= (0, 11, 0),
        ep_filter=version >= (0, 18, 0),
        kv="v1" if version >= (0, 8, 0) else "v0",  # the default engine of that release
        rounds_up=version >= (0, 28, 0),
        tokens_by_length=version >= (0, 22, 0),
    )
