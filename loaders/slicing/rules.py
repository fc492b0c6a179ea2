"""Tables of rules: from a tensor's name to how it is cut and which parameter it fills. Data.

A table is TOML; those in datasets/rules/ are found by config.json's `architectures`, a user's own
is passed by path (`read_table`). Its fields:

    architectures   whose checkpoints have these names ("LlamaForCausalLM", ...)
    extends         another built-in table; its rules come after this one's own. First match wins
    prefixes        what may stand before a pattern (default: "", "model.", "language_model.model.",
                    "model.language_model.", "language_model.")
    at_most_one_rank_per_expert   the engine refuses tp > experts

and `[[rules]]`, each with

    names     patterns of modules: the tensor's name without `.weight`, `.bias`, `.weight_scale`...
              {layer} and {expert} are numbers, * is anything but a dot, a final ** anything at all
    kind      the class of tensor that sums are shown for ("attention", "experts", ...)
    cut       whole     every rank keeps all of it
              column    dim 0 (out) in equal parts; bias and scales follow
              row       dim 1 (in) in equal parts; bias and per-channel scales stay whole
              heads     dim 0 by heads: parts "q" by attention heads, "k" and "v" by KV heads,
                        replicated where there are fewer KV heads than ranks
              vocab     dim 0, padded to a multiple of 64
              skip      no rank keeps it (`why` says so to the user)
    into      the module's last name in the engine, where several tensors fill one parameter
    parts     the parts that this tensor holds, in its order ("gate", or "q", "k", "v")
    of        all parts of the parameter, in its order (default: `parts`)
    alone     the last name where no other part of the parameter is in the checkpoint
    stage     "first" or "last": the pipeline stage of what belongs to no layer
    tied      true for the head that may share the embedding's memory
    stacked   "out_in" or "in_out": the tensor holds all experts, [E, out, in] or [E, in, out]
    latent    true for the up-projection of which MLA makes copies after loading

Experts (a pattern with {expert}, or `stacked`) are cut over dp x tp ranks, or whole by EP.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

from loaders.checkpoint.text import listed, quoted, shown
from loaders.slicing.errors import RulesError

FOLDER: Final = Path(__file__).resolve().parents[2] / "datasets" / "rules"
PREFIXES: Final = (
    "",
    "model.",
    "language_model.model.",
    "model.language_model.",
    "language_model.",
)
Cut = Literal["whole", "column", "row", "heads", "vocab", "skip"]
_STAGES: Final = (None, "first", "last")
_STACKED: Final = (None, "out_in", "in_out")
_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")  # a component of a name that is a number


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """One row of a table, as the module's docstring describes it."""

    names: tuple[str, ...]
    kind: str
    cut: Cut
    into: str | None = None
    parts: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    alone: str | None = None
    stage: Literal["first", "last"] | None = None
    tied: bool = False
    stacked: Literal["out_in", "in_out"] | None = None
    latent: bool = False
    why: str = ""

    @property
    def experts(self) -> bool:
        return self.stacked is not None or any("{expert}" in name for name in self.names)

    @property
    def out_dim(self) -> int:
        return {None: 0, "out_in": 1, "in_out": 2}[self.stacked]

    @property
    def in_dim(self) -> int:
        return {None: 1, "out_in": 2, "in_out": 1}[self.stacked]


# Compared by identity: a table is looked up once for each tensor, and its hash would cover it all.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """The rules of one family, in the order in which they are tried."""

    name: str
    architectures: tuple[str, ...]
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...] = PREFIXES
    at_most_one_rank_per_expert: bool = False

    def match(self, module: str) -> tuple[Rule, int | None, int | None] | None:
        """The rule of a module, with its layer and expert; None if there is none."""
        numbers = [int(found[0]) for found in _NUMBER.finditer(module)]
        found = _find(self, _NUMBER.sub("#", module))
        if found is None:
            return None
        rule, layer, expert = found
        return (
            rule,
            None if layer is None else numbers[layer],
            None if expert is None else numbers[expert],
        )


@cache
def _find(table: Table, shape: str) -> tuple[Rule, int | None, int | None] | None:
    """The rule for a module's name with `#` for its numbers, and which of them are the layer and
    the expert. A model has a hundred thousand names but some dozens of such shapes."""
    for rule in table.rules:
        for pattern in rule.names:
            for prefix in table.prefixes:
                if _regex(prefix + pattern).fullmatch(shape):
                    order = re.findall(r"\{(?:layer|expert)\}", pattern)
                    first = prefix.count("#")
                    places = {kind: first + index for index, kind in enumerate(order)}
                    return rule, places.get("{layer}"), places.get("{expert}")
    return None


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern)
    for mark, stands_for in (
        (r"\{layer\}", "#"),
        (r"\{expert\}", "#"),
        (r"\*\*", ".*"),
        (r"\*", "[^.]*"),
    ):
        text = text.replace(mark, stands_for)
    return re.compile(text)


def table_names() -> tuple[str, ...]:
    """The built-in tables, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def built_in(name: str) -> Table:
    """A built-in table. RulesError if there is none of that name or it is faulty."""
    if name not in table_names():
        raise RulesError(f"no table of rules is named {quoted(name)}; {listed(table_names(), 20)}")
    return read_table(FOLDER / f"{name}.toml")


def table_for(architecture: str | None) -> Table | None:
    """The built-in table of an architecture, None where there is none."""
    tables = (built_in(name) for name in table_names())
    return next((table for table in tables if architecture in table.architectures), None)


def read_table(path: str | Path) -> Table:
    """The table in a TOML file. RulesError, with the file, the rule and the field, if it can't be
    read or used."""
    place = Path(path)
    try:
        return parse_table(place.stem, place.read_text(encoding="utf-8"))
    except OSError as error:
        raise RulesError(f"{shown(place)}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RulesError) as error:
        raise RulesError(f"{shown(place)}: {error}") from error


def parse_table(name: str, text: str) -> Table:
    """The table that a TOML text describes. tomllib.TOMLDecodeError or RulesError."""
    data = tomllib.loads(text)
    known = {"architectures", "extends", "prefixes", "at_most_one_rank_per_expert", "rules"}
    _only(data, known, "the table")
    rows = data.get("rules", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RulesError("rules: expected [[rules]], each with names, kind and cut")
    base = built_in(data["extends"]) if "extends" in data else None
    rules = tuple(_rule(row, number) for number, row in enumerate(rows, 1))
    if not rules and base is None:
        raise RulesError("expected at least one of [[rules]], found none")
    return Table(
        name=name,
        architectures=_texts(data, "architectures", "the table"),
        rules=rules + (base.rules if base else ()),
        prefixes=_texts(data, "prefixes", "the table") or (base.prefixes if base else PREFIXES),
        at_most_one_rank_per_expert=bool(data.get("at_most_one_rank_per_expert", False)),
    )


def _rule(row: Mapping[str, Any], number: int) -> Rule:
    where = f"rule {number}"
    _only(row, {field.name for field in fields(Rule)}, where)
    for field in ("names", "kind", "cut"):
        if field not in row:
            raise RulesError(f"{where}: {field} is missing")
    given = {**row, **{name: _texts(row, name, where) for name in ("names", "parts", "of")}}
    given["of"] = given["of"] or given["parts"]
    _one_of(row, "cut", get_args(Cut), where)
    _one_of(row, "stage", _STAGES, where)
    _one_of(row, "stacked", _STACKED, where)
    for field in ("kind", "into", "alone", "why"):
        if not isinstance(row.get(field, ""), str):
            raise RulesError(f"{where}: {field}: expected a text, found {quoted(row[field])}")
    for field in ("tied", "latent"):
        if not isinstance(row.get(field, False), bool):
            raise RulesError(
                f"{where}: {field}: expected true or false, found {quoted(row[field])}"
            )
    rule = Rule(**given)
    if not set(rule.parts) <= set(rule.of):
        raise RulesError(f"{where}: parts {listed(rule.parts)} aren't all among {listed(rule.of)}")
    if rule.cut == "heads" and (not rule.parts or not set(rule.parts) <= {"q", "k", "v"}):
        raise RulesError(f'{where}: cut "heads" needs parts, each "q", "k" or "v"')
    if len(rule.parts) > 1 and rule.cut not in ("heads", "column"):
        raise RulesError(f'{where}: several parts in one tensor need cut "heads" or "column"')
    return rule


def _only(data: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := set(data) - known:
        raise RulesError(
            f"{where}: unknown field {listed(sorted(unknown))}; the fields are "
            f"{listed(sorted(known), 20)}"
        )


def _texts(data: Mapping[str, Any], field: str, where: str) -> tuple[str, ...]:
    value = data.get(field, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RulesError(f"{where}: {field}: expected a list of texts, found {quoted(value)}")
    return tuple(value)


def _one_of(row: Mapping[str, Any], field: str, allowed: tuple[Any, ...], where: str) -> None:
    if row.get(field) not in allowed:
        words = listed([value for value in allowed if value is not None], 20)
        raise RulesError(f"{where}: {field}: expected {words}, found {quoted(row.get(field))}")
