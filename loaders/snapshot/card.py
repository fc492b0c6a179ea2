"""`coldload.json` beside a sharded state: what its safetensors files have no place for.

made_by, format   "coldload snapshot", "sharded-state"
layout            {tp, pp, ep}
processing, device_layout, quantisation, source    as in a snapshot's header
made              {coldload, torch, seconds}
ranks             {rank: {tensor: xxh3-128 of its bytes}}, of the ranks that were made
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from loaders.checkpoint import strict_json
from loaders.checkpoint.manifest import Checkpoint
from loaders.checkpoint.names import rank_of
from loaders.checkpoint.regular import opened, read_at
from loaders.checkpoint.strict_json import StrictJsonError
from loaders.checkpoint.text import listed
from loaders.snapshot.format import MAX_TEXT, Header, HeaderError, Layout
from loaders.snapshot.parse import check_digest, facts_of

NAME: Final = "coldload.json"
FORMAT: Final = "sharded-state"
Digests = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """`header` is that of rank 0, without parameters; `ranks` the digests by name of each rank."""

    header: Header
    ranks: Mapping[int, Digests]

    def facts(self, rank: int) -> dict[str, Any]:
        """What a snapshot of this rank would say about itself."""
        return replace(self.header, layout=replace(self.header.layout, rank=rank)).facts()


def to_json(card: Card) -> dict[str, Any]:
    facts = card.header.facts()
    del facts["layout"]["rank"]
    ranks = {str(rank): dict(digests) for rank, digests in card.ranks.items()}
    return {"made_by": "coldload snapshot", "format": FORMAT, **facts, "ranks": ranks}


def read_card(folder: str) -> Card | None:
    """The card of a folder; None where there is none, or one of something else. HeaderError for a
    card that isn't as it was written, OSError."""
    path = Path(folder, NAME)
    if not os.path.lexists(path):
        return None
    with opened(str(path)) as (fd, size):
        if size > MAX_TEXT:
            raise HeaderError("corrupt-header", f"{size:,} bytes, of {MAX_TEXT:,} at most")
        text = read_at(fd, 0, size)
    try:
        value = strict_json.loads(text)
    except StrictJsonError as error:
        raise HeaderError("corrupt-header", f"isn't JSON: {error}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return None
    ranks = value.pop("ranks", None)
    del value["format"]
    value.pop("made_by", None)
    if isinstance(value.get("layout"), dict):
        value["layout"] = {**value["layout"], "rank": 0}
    header = facts_of(value)
    return Card(header=header, ranks=_ranks(ranks, header.layout.world))


def _ranks(value: Any, world: int) -> dict[int, Digests]:
    if not isinstance(value, dict):
        raise HeaderError("corrupt-header", "ranks: expected an object")
    found: dict[int, Digests] = {}
    for rank, digests in value.items():
        if not (rank.isascii() and rank.isdecimal() and int(rank) < world):
            raise HeaderError("corrupt-header", f"ranks: {rank!r} is none of {world}")
        if not isinstance(digests, dict):
            raise HeaderError("corrupt-header", f"ranks: {rank}: expected an object")
        for name, digest in digests.items():
            check_digest(digest, name)
        found[int(rank)] = digests
    return found


def rank_in(checkpoint: Checkpoint, layout: Layout) -> int | None:
    """The rank whose files the checkpoint's are; None for files of another kind."""
    place = rank_of(checkpoint.files[0].name) if checkpoint.files else None
    return place[0] * layout.tp + place[1] if place is not None else None


def unlike(checkpoint: Checkpoint, card: Card) -> str | None:
    """Why the files of a rank, by their headers, aren't those that the card is about."""
    rank = rank_in(checkpoint, card.header.layout)
    if rank is None or rank not in card.ranks:
        return f"{NAME}: made were {listed(sorted(card.ranks))} of {card.header.layout}, not {rank}"
    expected, found = card.ranks[rank].keys(), {spec.name for spec in checkpoint.tensors}
    for what, names in (("lack", expected - found), ("hold in addition", found - expected)):
        if names:
            return f"rank {rank}'s files {what} {listed(sorted(names))}, by {NAME}; copy them again"
    return None
