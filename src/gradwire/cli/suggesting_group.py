"""Suggesting group: a click group that suggests the intended command for a mistyped one."""

from __future__ import annotations

import click

from gradwire.suggest import did_you_mean


class SuggestingGroup(click.Group):
    """click's group, with a suggestion for an unknown command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            hint = did_you_mean(args[0], known)
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}commands are {', '.join(known)}", ctx)
        return super().resolve_command(ctx, args)
