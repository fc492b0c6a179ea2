"""What is measured: a case is one contestant under one condition. Pure values and their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Cache = str
"""`cold`, `warm`, a share (`50%`, see bench.record.cachestate), `none` for what reads no file."""

BY_LOADER = frozenset({"disk_to_host"})
"""Phases whose contestants are registered loaders; elsewhere `loader` names a way or a reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One contestant: a loader (or a ceiling's reader) with its options, on one storage, in one
    cache state. `twin` marks the second entry of the contestant that runs twice under two names:
    the ratio of the two is the noise of the run."""

    phase: str
    loader: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    threads: int | None = None
    cache: Cache = "none"
    storage: str | None = None
    device: str = "cpu"
    layout: str = "tp1"
    twin: bool = False

    @property
    def option_text(self) -> str:
        """`a=1,b=true`, sorted; `-` for none."""
        return _options_text({**self.options, **({"twin": True} if self.twin else {})})

    @property
    def title(self) -> str:
        """As a table names it."""
        options = f" {_options_text(self.options)}" if self.options else ""
        return f"{self.loader}{options}{' (A/A)' if self.twin else ''}"

    @property
    def test_id(self) -> str:
        """As pytest names it: the stable axes only, so that runs can be compared by it."""
        parts = [self.loader]
        if self.option_text != "-":
            parts.append(self.option_text.replace(",", "+"))
        if self.cache != "none":
            parts.append(self.cache)
        if self.threads is not None:
            parts.append(f"t{self.threads}")
        if self.storage is not None:
            parts.append(self.storage)
        return "-".join(parts)

    def case_id(self, *, model: str, size: str, dtype: str) -> str:
        """The stable id of the record: no host name and no path in it."""
        return "/".join(
            [
                self.phase,
                self.loader,
                self.option_text.replace("/", "--"),
                model.replace("/", "--"),
                size,
                dtype,
                "-" if self.threads is None else f"t{self.threads}",
                self.cache,
                self.device,
                self.layout,
                self.storage or "-",
            ]
        )


def _options_text(options: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={_text(value)}" for key, value in sorted(options.items())) or "-"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
