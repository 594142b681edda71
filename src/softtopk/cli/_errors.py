"""How commands report mistakes. Imported when a command is run: it needs typer."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def usage_errors() -> Iterator[None]:
    """Report a mistake of the caller as the parser reports its own."""
    from softtopk.experiments.errors import UsageError

    try:
        yield
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error
