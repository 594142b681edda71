"""How commands report mistakes. Imported when a command is run: it needs typer."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def usage_errors() -> Iterator[None]:
    """Report a mistake of the caller, or a refusal of the system, as the parser does its own."""
    from softtopk.experiments.errors import UsageError

    try:
        yield
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error
    except BrokenPipeError:  # the reader of the output has seen enough: typer ends the command
        raise
    except OSError as error:  # a full disk, a folder that is read-only, ...
        file = f"{error.filename}: " if error.filename is not None else ""
        reason = error.strerror or str(error)
        raise typer.BadParameter(
            f"{file}{reason}; see to that, and give the command again"
        ) from error
