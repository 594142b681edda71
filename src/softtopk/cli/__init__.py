"""The command line: parsing and printing only.

typer is optional and imported when a command is run, not when this module is.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from softtopk import __version__, _environment

if TYPE_CHECKING:
    import typer

INTERRUPTED = 130  # as a shell reports it


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command in `argv`, by default the process's arguments, and exit."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        app = _app()
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        _run_without_typer(args)
    except KeyboardInterrupt:  # while the command line was still being loaded
        sys.exit(INTERRUPTED)
    else:
        app(args=args or ["--help"], prog_name="softtopk")


def _run_without_typer(args: list[str]) -> None:
    # A diagnosis has to work on the barest install, so `info` does not need the parser.
    if args == ["info"]:
        print(_describe(_environment.collect()))
    elif args == ["--version"]:
        print(f"softtopk {__version__}")
    else:
        sys.exit(
            "softtopk: without typer there are only 'softtopk info' and 'softtopk --version'; for "
            "the rest: pip install 'softtopk[cli]'"
        )


def _app() -> "typer.Typer":
    import typer

    from . import _bench as bench
    from . import _figures as figures
    from . import _knn as knn
    from . import _translate as translate

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    def print_version(wanted: bool) -> None:
        if wanted:
            print(f"softtopk {__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        # Eager, so that it is answered before the parser asks for a command.
        version: Annotated[
            bool,
            typer.Option(
                "--version", help="Print the version.", callback=print_version, is_eager=True
            ),
        ] = False,
    ) -> None:
        """Differentiable top-k operators in PyTorch."""

    @app.command()
    def info(
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Print versions, devices and which kernels run; add it to a report of a problem."""
        environment = _environment.collect()
        print(json.dumps(asdict(environment), indent=2) if as_json else _describe(environment))

    bench.add_to(app)
    figures.add_to(app)
    app.add_typer(knn.app(), name="knn")
    app.add_typer(translate.app(), name="translate")
    return app


def _describe(environment: _environment.Environment) -> str:
    rows = {
        "softtopk": environment.softtopk,
        "Python": environment.python,
        "platform": environment.platform,
        "torch": environment.torch,
    }
    for name, version in environment.optional.items():
        extra = _environment.OPTIONAL[name]
        rows[name] = version or f"not installed (pip install 'softtopk[{extra}]')"
    rows["CPU threads"] = str(environment.cpu_threads)
    rows["devices"] = ", ".join(("cpu", *environment.accelerators))
    rows["kernels"] = str(environment.native)
    width = max(map(len, rows)) + 2
    return "\n".join(f"{name + ':':<{width}}{value}" for name, value in rows.items())
