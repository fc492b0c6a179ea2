"""An engine's command line, changed in one setting. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_MODEL_OPTIONS = ("--model", "--model-path", "--model_tag", "--model-tag")
# Of `vllm serve`, options that take no value: what follows them may be the model.
_FLAGS_BEFORE_MODEL = frozenset({"--enforce-eager", "--trust-remote-code", "--headless"})


def model_of(command: Sequence[str]) -> str | None:
    """The model that a command line names: `serve MODEL`, else `--model MODEL`; None if it doesn't
    (a script that knows it by itself, a shell's text)."""
    words = list(command)
    for option in _MODEL_OPTIONS:
        given = option_of(words, option)
        if given is not None:
            return given
    if "serve" not in words:
        return None
    rest = words[words.index("serve") + 1 :]
    while rest and rest[0] in _FLAGS_BEFORE_MODEL:
        rest = rest[1:]
    return rest[0] if rest and not rest[0].startswith("-") else None


def option_of(command: Sequence[str], option: str) -> str | None:
    """The value of an option, of the last one if it's given several times: as `--x v` or `--x=v`,
    with dashes or underscores."""
    found = None
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if not _is(name, option):
            continue
        if equals:
            found = value
        elif at + 1 < len(command):
            found = command[at + 1]
    return found


def has_flag(command: Sequence[str], option: str) -> bool:
    return any(_is(word.partition("=")[0], option) for word in command)


def with_option(command: Sequence[str], option: str, value: str) -> list[str]:
    """The command with that option set, and not given twice."""
    kept: list[str] = []
    skip = False
    for word in command:
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if _is(name, option):
            skip = not equals
            continue
        kept.append(word)
    return [*kept, option, value]


def _is(name: str, option: str) -> bool:
    return name.startswith("--") and name.replace("_", "-") == option.replace("_", "-")


def comparisons(command: Sequence[str]) -> tuple[dict[str, list[str]], Mapping[str, str]]:
    """`(commands, left out)`: the starts to compare by name, in their order, and why others
    aren't among them."""
    commands = {"cold": list(command), "warm": list(command)}
    left_out: dict[str, str] = {}
    if has_flag(command, "--enforce-eager"):
        left_out["eager"] = "it is without graphs already (--enforce-eager)"
    else:
        commands["eager"] = [*command, "--enforce-eager"]
    if option_of(command, "--load-format") == "dummy":
        left_out["cold"] = left_out["dummy"] = "its weights are dummies already: it reads no file"
        del commands["cold"]
    else:
        commands["dummy"] = with_option(command, "--load-format", "dummy")
    return commands, left_out
