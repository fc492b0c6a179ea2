"""The command `coldload`. Each sub-command is a few lines that call the part that does the work."""

from __future__ import annotations

import importlib
import pkgutil

import click

import bench.commands
from loaders.store.address import scrubbed


class Commands(click.Group):
    """Finds each sub-command as the one `command` of a module in bench/commands/, and imports only
    the one that is called: `coldload check` must not wait for torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(module.name for module in pkgutil.iter_modules(bench.commands.__path__))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        found = importlib.import_module(f"bench.commands.{name}").command
        assert isinstance(found, click.Command)
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # it quotes what was typed, which may be an address
            raise click.UsageError(scrubbed(error.format_message()), error.ctx) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure how a large model's weights get from storage into memory, and what limits it.

    To measure: pytest --benchmark-only. These commands look at what goes in and what came out.
    """
