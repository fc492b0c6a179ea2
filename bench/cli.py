"""The command `coldload`. Each sub-command is a few lines that call the part that does the work."""

from __future__ import annotations

import importlib
import pkgutil

import click

import bench.commands
from loaders.checkpoint.text import printable
from loaders.device.faults import explain_import
from loaders.store.address import scrubbed

NEXT = {
    "advise": "Before: pytest --benchmark-only makes a run. After: coldload compare OLD NEW shows "
    "whether the change helped.",
    "check": "Next: pytest --benchmark-only --model=PATH measures how it loads.",
    "compare": "Next: coldload advise RUN says what to change; with more --passes smaller "
    "differences show.",
    "explain": "Next: coldload watch -- COMMAND takes a start apart while it goes on; pytest "
    "--benchmark-only says what this host could reach.",
    "host": "Next: pytest --benchmark-only --storage=PATH measures it.",
    "loaders": "Next: pytest --benchmark-only --loader=NAME measures one.",
    "make": "Next: coldload check DIR, or pytest --benchmark-only --model=DIR.",
    "plan": "Next: pytest --benchmark-only --tp=8 measures what such slicing costs.",
    "plan-run": "Next: the same options with pytest --benchmark-only make the run.",
    "quantize": "Next: coldload check DEST, or pytest --benchmark-only --model=DEST.",
    "ranks": "Next: coldload report RUN shows when each rank was done.",
    "report": "Next: coldload advise RUN says what to change.",
    "runs": "Next: coldload report RUN and coldload advise RUN, for one of them.",
    "snapshot": "Next: pytest --benchmark-only --loader=snapshot measures what it saves.",
    "w8a8": "Before: pytest bench/bench_w8a8.py --benchmark-only makes a run.",
    "watch": "Next: coldload explain LOG takes kept output apart; pytest --benchmark-only says "
    "what this host could reach.",
}
"""What to do after a command, or before it: the last line of its --help."""


class Commands(click.Group):
    """Finds each sub-command as the one `command` of a module in bench/commands/, and imports only
    the one that is called: `coldload check` must not wait for torch. One that can't be imported
    says so when it is called, and hides none of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = pkgutil.iter_modules(bench.commands.__path__)
        return sorted(module.name.replace("_", "-") for module in found)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        try:
            found = importlib.import_module(f"bench.commands.{name.replace('-', '_')}").command
        except Exception as error:
            return _unusable(name, error)
        assert isinstance(found, click.Command)
        after = NEXT.get(name, "")
        if after not in (found.epilog or ""):
            found.epilog = " ".join(filter(None, [found.epilog, after]))
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # it quotes what was typed, which may be an address
            raise click.UsageError(scrubbed(error.format_message()), error.ctx) from None
        except (RuntimeError, ImportError, OSError) as error:
            _explain(error)
            raise


class HalfInstalledError(click.ClickException):
    exit_code = 2


def _unusable(name: str, error: Exception) -> click.Command:
    """Stands for a command that can't be imported: it ends with the reason, whatever it is
    given."""
    said = explain_import(error) or (
        f"coldload {name} can't be used here: {type(error).__name__}: {error}. Install coldload "
        f"anew (python -m pip install -e . in its folder); the other commands stand."
    )

    @click.argument("anything", nargs=-1, type=click.UNPROCESSED)
    def end(anything: tuple[str, ...]) -> None:
        raise HalfInstalledError(printable(said)) from error

    return click.command(
        name,
        short_help="(can't be used here: call it for the reason)",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )(end)


def _explain(error: Exception) -> None:
    """Raises one clear error where torch, imported when a command needs it, can't be because an
    accelerator's software is installed in part."""
    said = explain_import(error)
    if said is not None:
        raise HalfInstalledError(said) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Why a large model's weights take so long to load, and what would make it fast here.

    \b
    A slow start of an engine:  coldload explain startup.log
    How long a run would take:  coldload plan-run
    This host, measured:        pytest --benchmark-only     (writes runs/<time>)
    What to change:             coldload advise runs/<time>
    A page to look at:          coldload report runs/<time>
    """
