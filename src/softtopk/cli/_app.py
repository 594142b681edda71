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
    add(
        app,
        bench.main,
        bench.Options,
        settings=bench.Settings,
        name="bench",
        example="softtopk bench --preset quick --out bench",
    )
    add(
        app,
        figures.main,
        figures.Options,
        name="figures",
        example="softtopk figures --only plan,knn --format png,svg --out figures",
    )
    app.command(_knn())
    app.command(_translate())
    return app


def info(*, json: Annotated[bool, Parameter(help="Print JSON.", negative=())] = False) -> None:
    """Print versions, devices and which kernels run; add it to a report of a problem."""
    environment = _environment.collect()
    print(as_json(environment) if json else describe(environment))


def _knn() -> App:
    app = App(name="knn", help="Train and compare kNN classifiers, as in the paper's Table 1.")
    add(
        app,
        knn.train,
        knn.Train,
        settings=knn.Settings,
        example="softtopk knn train --data digits --method knn,soft-topk --out run",
    )
    add(app, knn.table, knn.Table, example="softtopk knn table run --out table.md")
    add(app, knn.plot, knn.Plot, example="softtopk knn plot run --method knn,soft-topk")
    add(app, knn.predict, knn.Predict, example="softtopk knn predict run images.npy")
    return app


def _translate() -> App:
    app = App(
        name="translate",
        help="Train and compare translation models, as in the paper's Tables 2 and 3.",
    )
    add(
        app,
        translation.prepare,
        translation.Prepare,
        settings=translation.Settings,
        only=translation.CORPUS,
        example="softtopk translate prepare --data text --vocab 8000 --out prepared",
    )
    add(
        app,
        translation.train,
        translation.Train,
        settings=translation.Settings,
        example="softtopk translate train --data text --source en --target fr --objective all "
        "--out run",
    )
    add(
        app,
        translation.evaluate,
        translation.Evaluate,
        example="softtopk translate evaluate run --split valid --beam 1,5",
    )
    add(
        app,
        translation.translate,
        translation.Translate,
        example="echo 'Monday, 3 March' | softtopk translate translate run",
    )
    add(
        app,
        translation.attention,
        translation.Attention,
        example="softtopk translate attention run --text 'Monday, 3 March' --out attention.png",
    )
    add(
        app,
        translation.compare,
        translation.Compare,
        example="softtopk translate compare run another-run --out table.md",
    )
    return app
