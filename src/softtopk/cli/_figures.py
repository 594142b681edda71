"""The command `softtopk figures`. Imported when a command is run: it needs typer."""

from pathlib import Path
from typing import Annotated

import typer

from ._errors import usage_errors


def add_to(app: typer.Typer) -> None:
    """Make the command one of ``app``."""
    app.command()(figures)


def figures(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and their index.")] = Path(
        "figures"
    ),
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only these: indicator, plan, temperatures, sorted_plan, knn, gradient, "
            "bias, convergence; separate several by commas, or repeat the option.",
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format", metavar="FORMAT", help="png (the default), svg or pdf; several likewise."
        ),
    ] = None,
) -> None:
    """Draw figures of the paper, and two more, from the operators (half a minute)."""
    from softtopk.experiments.figures import main

    with usage_errors():
        code = main(out, only or (), formats or ("png",))
    raise typer.Exit(code)
