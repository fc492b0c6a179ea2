"""Which loaders there are, and why one can't be used here.

Every module of this package is a candidate: it registers its class when imported. Packages from
outside add theirs through the entry-point group `coldload.loaders` (each entry names a class).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from itertools import count
from typing import TypeVar

from loaders.contract import Loader

GROUP = "coldload.loaders"
_registered: dict[str, type[Loader]] = {}
L = TypeVar("L", bound=type[Loader])


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A loader's row: its class, or the reason why there is none."""

    name: str
    cls: type[Loader] | None
    reason: str | None = None


def register(cls: L) -> L:
    """Class decorator: makes the loader known by its `name`. Two of one name are an error."""
    other = _registered.get(cls.name)
    if other is not None and other.__qualname__ != cls.__qualname__:
        raise ValueError(f"two loaders are named {cls.name!r}: {other!r} and {cls!r}")
    _registered[cls.name] = cls
    return cls


@cache
def entries() -> dict[str, Entry]:
    """All loaders by name, ours first. What fails to import becomes a row with its reason."""
    broken: list[Entry] = []
    package = importlib.import_module("loaders")
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg or module.name in {"contract", "registry"}:
            continue
        try:
            importlib.import_module(f"loaders.{module.name}")
        except Exception as error:  # one bad file must not take the others along
            broken.append(_broken(module.name, error))
    ours = [Entry(name=name, cls=cls) for name, cls in sorted(_registered.items())]
    outside = [_from_outside(point) for point in entry_points(group=GROUP)]
    found: dict[str, Entry] = {}
    for entry in [*ours, *broken, *outside]:
        if entry.name not in found:
            found[entry.name] = entry
        elif entry.cls is None or found[entry.name].cls is not entry.cls:
            # Never in another's place and never silently gone.
            key = next(key for n in count(2) if (key := f"{entry.name}#{n}") not in found)
            reason = entry.reason or f"the name {entry.name!r} is taken by another loader"
            found[key] = Entry(name=key, cls=None, reason=reason)
    return found


def _from_outside(point: EntryPoint) -> Entry:
    try:
        cls = point.load()
    except (Exception, SystemExit) as error:  # a stranger's module may do anything when imported
        return _broken(point.name, error)
    if not (isinstance(cls, type) and issubclass(cls, Loader)):
        reason = f"entry point {point.name} = {point.value} is not a Loader class"
        return Entry(name=point.name, cls=None, reason=reason)
    missing = [
        name for name in ("name", "summary", "formats", "ownership") if not hasattr(cls, name)
    ]
    if isabstract(cls):
        missing.append("load()")
    if missing:
        reason = f"{point.value} doesn't define {', '.join(missing)}"
        return Entry(name=point.name, cls=None, reason=reason)
    return Entry(name=cls.name, cls=cls)


def _broken(name: str, error: BaseException) -> Entry:
    return Entry(name=name, cls=None, reason=f"import failed: {type(error).__name__}: {error}")


def get(name: str) -> type[Loader]:
    """The class of that name. KeyError with the known names if there is none; RuntimeError with
    the reason if it is broken."""
    entry = entries().get(name)
    if entry is None:
        raise KeyError(f"no loader is named {name!r}; there are: {', '.join(entries())}")
    if entry.cls is None:
        raise RuntimeError(f"loader {name}: {entry.reason}")
    return entry.cls


def unavailable(entry: Entry) -> str | None:
    """Why the loader can't run on this host, or None if it can."""
    if entry.cls is None:
        return entry.reason
    missing = [name for name in entry.cls.requires if not _importable(name)]
    if missing:
        return f"needs {', '.join(missing)}, which is not installed"
    try:
        return entry.cls.unusable()
    except Exception as error:  # a stranger's answer must not take the others along
        return f"can't tell whether it runs here: {type(error).__name__}: {error}"


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a.b without an a; a module that was loaded by hand
        return False
