"""All commands. Imported when a command is run: it needs cyclopts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from softtopk import __version__, _environment
from softtopk.experiments import bench, figures, knn, translation
from softtopk.experiments.errors import UsageError

from ._commands import add
from ._info import as_json, describe

WRONG = 2  # the exit code after a mistake of the caller


def run(args: Sequence[str]) -> int:
    """Run a command, and return the exit code. A mistake is one message that says what to do."""
    app = make_app()
    try:
        return app(args, exit_on_error=False, print_error=False, result_action="return_value") or 0
    except (CycloptsError, UsageError) as error:
        message = str(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that is read-only, ...
        file = f"{error.filename}: " if error.filename is not None else ""
        message = f"{file}{error.strerror or error}; see to that, and give the command again"
    print(f"softtopk: {message}", file=sys.stderr)
    return WRONG


def make_app() -> App:
    """The commands, each with the options that its settings declare."""
    app = App(
        name="softtopk",
        help="Differentiable top-k operators in PyTorch.",
        help_format="plaintext",
        version=f"softtopk {__version__}",
        version_flags=["--version"],
    )
    app.command(info)
    add(app, bench.main, bench.Options, settings=bench.Settings, name="bench")
    add(app, figures.main, figures.Options, name="figures")
    app.command(_knn())
    app.command(_translate())
    return app


def info(*, json: Annotated[bool, Parameter(help="Print JSON.", negative=())] = False) -> None:
    """Print versions, devices and which kernels run; add it to a report of a problem."""
    environment = _environment.collect()
    print(as_json(environment) if json else describe(environment))


def _knn() -> App:
    app = App(name="knn", help="Train and compare kNN classifiers, as in the paper's Table 1.")
    add(app, knn.train, knn.Train, settings=knn.Settings)
    add(app, knn.table, knn.Table)
    add(app, knn.plot, knn.Plot)
    add(app, knn.predict, knn.Predict)
    return app


def _translate() -> App:
    app = App(
        name="translate",
        help="Train and compare translation models, as in the paper's Tables 2 and 3.",
    )
    settings = translation.Settings
    add(app, translation.prepare, translation.Prepare, settings=settings, only=translation.CORPUS)
    add(app, translation.train, translation.Train, settings=settings)
    add(app, translation.evaluate, translation.Evaluate)
    add(app, translation.translate, translation.Translate)
    add(app, translation.attention, translation.Attention)
    add(app, translation.compare, translation.Compare)
    return app
