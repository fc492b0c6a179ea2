"""What can go wrong at a store: for good, or for now."""

from __future__ import annotations

from typing import Literal

Kind = Literal["absent", "refused", "backend", "no-ranges", "short", "failed", "stopped"]


class StoreError(OSError):
    """It can't be had, and asking again wouldn't change that. `kind`: `absent`; `refused`
    (credentials, permission); `backend` (the library for such addresses isn't installed);
    `no-ranges` (the server sends whole files); `short` (the file ends before); `failed` (retries
    used up, or an answer that makes no sense); `stopped` (the reader was told to). The text shows
    no secret. `found`: of a file that is too short, its size in bytes, if known."""

    def __init__(self, kind: Kind, text: str, *, found: int | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.found = found


class TransientError(Exception):
    """It may work the next time. `got` bytes had arrived in their place before; `after` is how many
    seconds the server asked to wait, None if it didn't."""

    def __init__(self, text: str, *, got: int = 0, after: float | None = None) -> None:
        super().__init__(text)
        self.got = got
        self.after = after
