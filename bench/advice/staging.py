"""The checkpoint copied to faster storage first, where the copy pays."""

from __future__ import annotations

from shlex import quote
from statistics import median

from bench.advice.contract import Advice, Saving, Seen, rate_words, saving
from bench.words.names import named
from bench.words.staged import Staged, first_load, ordinal, stagings


def find(seen: Seen) -> Advice | None:
    """The copy was measured, and loading from it was faster in every pass; of several kinds of
    memory and targets the one where most is saved."""
    found = [
        (saved, one)
        for one in stagings(seen.run, seen.reading)
        if one.passes and None not in one.loads()
        if (saved := saving(one.direct, one.staged)) is not None
    ]
    return _advice(seen, *max(found, key=lambda pair: pair[0].seconds)) if found else None


def _advice(seen: Seen, saved: Saving, best: Staged) -> Advice:
    facts = seen.storage(best.target)
    folder = quote(str(facts.get("path") or facts.get("mount_point") or "/path/to/copy"))
    copy = median(best.copy[n] for n in best.passes)
    memory = "; there it is memory" if facts.get("fs_type") in {"tmpfs", "ramfs"} else ""
    return Advice(
        name="staging",
        title=f"Copy the model from {best.source} to {best.target} first",
        seen=f"{named(best.here)} {rate_words(best.here)} from {best.source}, {named(best.there)} "
        f"{rate_words(best.there)} from the copy; copying took {copy:.2f} s.",
        do=(f"cp -r /path/to/model {folder}/", f"vllm serve {folder}/model"),
        cost=f"the {copy:.2f} s of the copy once (again after a boot, where it doesn't last): it "
        f"pays from the {ordinal(first_load(best))} load on; room for the whole model{memory}",
        saving=saved,
    )
