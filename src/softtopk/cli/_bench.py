"""The command `softtopk bench`. Imported when a command is run: it needs typer."""

from pathlib import Path
from typing import Annotated

import typer

from ._errors import usage_errors


def add_to(app: typer.Typer) -> None:
    """Make the command one of ``app``."""
    app.command()(bench)


def bench(
    preset: Annotated[
        str,
        typer.Option(help="full (all peers, 15 minutes), quick (2 minutes) or targets."),
    ] = "full",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench"),
    images: Annotated[
        Path | None, typer.Option(help="Folder for the pictures, by default that of --out.")
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help="Only these, as in 'sinkhorn,entmax,topk'.")
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="ROWSxNxK instead of the preset's cases; may be repeated."),
    ] = None,
    eps: Annotated[float | None, typer.Option(help="With --size; default 0.1.")] = None,
    threads: Annotated[int | None, typer.Option(help="Default 2, or 1 on one core.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Repetitions of each peer.")] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds for one peer in one case.")] = None,
    memory: Annotated[
        float | None, typer.Option(help="GiB for one call; default half of what is free.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the finished cases in --out.")
    ] = False,
) -> None:
    """Measure time, memory and error against every peer that is installed."""
    from softtopk.experiments import bench as benchmark

    given = {"threads": threads, "repeats": repeats, "budget": budget, "memory": memory}
    with usage_errors():
        settings = benchmark.make_settings(
            preset,
            size or [],
            eps,
            out=out,
            peers=tuple(peers.split(",")) if peers else (),
            resume=resume,
            **{name: value for name, value in given.items() if value is not None},
        )
        code = benchmark.main(settings, images or out)
    raise typer.Exit(code)
