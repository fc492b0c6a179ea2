"""Keeping out of records and messages what is secret: passwords in addresses, keys and tokens in
command lines, in the environment and in what an engine prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from loaders.store.address import scrubbed, secrets_of

HIDDEN = "***"
_SHORTEST = 4
"""Letters of a value that is looked for in other texts; shorter ones are in any sentence."""

# --hf-token, VLLM_API_KEY, aws_secret_access_key; not --max-num-batched-tokens, not a key's file
_NAME = (
    r"(?:[\w-]*[_-])?(?:api[_-]?keys?|access[_-]?keys?|secret(?:[_-]?keys?)?|token|password|passwd|"
    r"passphrase|credentials?|authorization)"
)
_OPTION = re.compile(rf"(?:--)?{_NAME}", re.I)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d+)?[kKmM]?")  # of a limit, or a token's id
_ASSIGNED = re.compile(
    rf"(?<![\w-])(?P<head>--{_NAME}(?:=|\s+)|{_NAME}\s?=\s?|(?P<quote>[\"']){_NAME}(?P=quote)\s*:\s*|"
    r"Authorization:\s*(?:Bearer\s+|Basic\s+)?)"
    r"(?P<value>(?:\"[^\"]*\"?|'[^']*'?|\[[^\]]*\]?|[^\s,;&|)}\]\"'-])[^\s,;&|)}\]\"']*)",
    re.I,
)
_SHAPED = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|"
    r"(?:AKIA|ASIA)[A-Z0-9]{16})\b|(?<=\bBearer )[^\s\"',]+"
)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s'\"<>|]+")


def masked_command(command: Sequence[str]) -> list[str]:
    """The words of a command line, the value of every secret hidden."""
    shown: list[str] = []
    after = False  # an option whose values are secret, of which some engines take several
    for word in command:
        name, equals, value = word.partition("=")
        # a text with blanks in it is a shell's, whose words are told apart by `hidden`
        plain = not re.search(r"\s", word) and not _NUMBER.fullmatch(value)
        secret = plain and _OPTION.fullmatch(name) is not None
        if word.startswith("--") or equals:
            after = secret and not equals
            shown.append(f"{name}={HIDDEN}" if secret and value else hidden(word))
        elif after and not word.startswith("-") and not _NUMBER.fullmatch(word):
            shown.append(HIDDEN)
        else:
            after = False
            shown.append(hidden(word))
    return shown


def secrets_in(command: Sequence[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Values of a command line and of an environment that mustn't be shown anywhere."""
    found = {value for name, value in environment.items() if _OPTION.fullmatch(name)}
    for word, shown in zip(command, masked_command(command), strict=True):
        if shown == HIDDEN:
            found.add(word)
        elif shown.endswith(f"={HIDDEN}"):
            found.add(word.partition("=")[2])
        else:
            found.update(re.sub(r"^\W+|\W+$", "", one["value"]) for one in _ASSIGNED.finditer(word))
        for address in _ADDRESS.findall(word):
            found.update(secrets_of(address))
    return frozenset(
        value for value in found if len(value) >= _SHORTEST and not _NUMBER.fullmatch(value)
    )


def hidden(text: str, known: Collection[str] = ()) -> str:
    """`text` without the passwords of its addresses, without what it calls a key or token itself,
    and without the `known` values. Applying it twice changes nothing more."""
    for value in sorted(known, key=len, reverse=True):
        if value in text:
            text = re.sub(rf"(?<![\w-]){re.escape(value)}(?![\w-])", HIDDEN, text)
    if "://" in text:
        text = scrubbed(text)
    return _SHAPED.sub(HIDDEN, _ASSIGNED.sub(_without_value, text))


def without_secrets(document: Any, known: Collection[str] = ()) -> Any:
    """The same of every text in a JSON-able document."""
    if isinstance(document, str):
        return hidden(document, known)
    if isinstance(document, Mapping):
        return {key: without_secrets(item, known) for key, item in document.items()}
    if isinstance(document, (list, tuple)):
        return [without_secrets(item, known) for item in document]
    return document


def _without_value(found: re.Match[str]) -> str:
    value = found["value"].strip("\"'")
    nothing = value in ("", "None", "null", "[None]", "[]", HIDDEN, f"['{HIDDEN}']")
    return found[0] if nothing or _NUMBER.fullmatch(value) else f"{found['head']}{HIDDEN}"
