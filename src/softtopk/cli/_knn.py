"""The commands `softtopk knn ...`. Imported when a command is run: it needs typer."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ._errors import usage_errors

DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the files of mnist, fashion-mnist or cifar10.")
]


def app() -> typer.Typer:
    """The commands."""
    commands = typer.Typer(
        no_args_is_help=True, help="Train and compare kNN classifiers, as in the paper's Table 1."
    )
    for command in (train, table, plot, predict):
        commands.command()(command)
    return commands


def train(
    out: Annotated[Path, typer.Option(help="Folder of the run; a new one, or see --resume.")],
    data: Annotated[
        str | None, typer.Option(help="digits (the default), mnist, fashion-mnist or cifar10.")
    ] = None,
    data_dir: DataDir = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between them, or all: knn, pca, ae, pretrained, "
            "relax-subsample, neural-sort, cuturi, softmax-k-times, ce, soft-topk (the default); "
            "besides these soft-topk-sinkhorn."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="paper or tuned: where the other options start from. Default: paper for the "
            "data sets of the paper, mnist and cifar10."
        ),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(help="One or several, as in 0,1,2; default 0.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, with its options. Methods and seeds may be added.",
        ),
    ] = False,
    k: Annotated[int | None, typer.Option(help="Neighbours.")] = None,
    eps: Annotated[
        float | None, typer.Option(help="Temperature of the relaxation of every method.")
    ] = None,
    normalize: Annotated[
        str | None, typer.Option(help="Scale of the cost of SOFT top-k: row, batch or none.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="vote (the paper's, linear) or nll (its logarithm).")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="euclidean, squared or cosine.")] = None,
    leave_one_out: Annotated[
        bool | None,
        typer.Option(
            "--leave-one-out/--no-leave-one-out",
            help="Let the queries and templates of a step be each other's templates.",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes through all training images.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Queries in a step.")] = None,
    template_size: Annotated[int | None, typer.Option(help="Templates in a step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adamw.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of sgd.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of either optimizer.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Of the learning rate: constant, cosine or linear.")
    ] = None,
    warmup: Annotated[
        float | None, typer.Option(help="Share of the steps in which the learning rate rises.")
    ] = None,
    shift: Annotated[
        int | None, typer.Option(help="Shift the images at random by up to so many pixels.")
    ] = None,
    flip: Annotated[
        bool | None, typer.Option("--flip/--no-flip", help="Reflect half of the images.")
    ] = None,
    subset: Annotated[
        int | None, typer.Option(help="Use so many images only, for a quick run.")
    ] = None,
    holdout: Annotated[
        int | None,
        typer.Option(
            help="Test on so many images of the training set, to tune without the test set."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu (the default), cuda, mps, ...")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: torch's.")] = None,
) -> None:
    """Train methods of the table, classify the test images, and print the table.

    The folder gets a run for each method and seed, table.md and table.json.
    Ctrl-C stops it after the step at hand; --resume goes on to the same result.
    """
    from softtopk.experiments import knn

    # By name, as the settings have them; an option that is not given is left to the preset.
    options: dict[str, Any] = {
        "data": data, "k": k, "eps": eps, "objective": objective, "metric": metric,
        "leave_one_out": leave_one_out,
        "epochs": epochs, "batch_size": batch_size, "template_size": template_size,
        "optimizer": optimizer, "lr": lr, "momentum": momentum, "weight_decay": weight_decay,
        "schedule": schedule, "warmup": warmup, "shift": shift, "flip": flip, "subset": subset,
        "holdout": holdout, "device": device, "threads": threads,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    if normalize is not None:
        given["normalize"] = None if normalize == "none" else normalize
    with usage_errors():
        plan = knn.make_plan(
            out, resume=resume, preset=preset, methods=method, seeds=seed, data_dir=data_dir,
            given=given,
        )  # fmt: skip
        code = knn.train(out, plan, resume=resume)
    raise typer.Exit(code)


def table(
    runs: Annotated[list[Path], typer.Argument(help="Folders with runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the table here, as Markdown and as JSON.")
    ] = None,
) -> None:
    """Make the table again from the records of one or several runs."""
    from softtopk.experiments import knn

    with usage_errors():
        knn.table(runs, out)


def plot(
    run: Annotated[Path, typer.Argument(help="Folder with a run.")],
    method: Annotated[
        str | None,
        typer.Option(help="The methods to show; default: all curves, and the features of two."),
    ] = None,
    projection: Annotated[str, typer.Option(help="tsne or pca.")] = "tsne",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Folder, by default that of the run.")] = None,
) -> None:
    """Draw the feature space (features.png) and the training curves (curves.png) of a run."""
    from softtopk.experiments import knn

    with usage_errors():
        knn.plot(run, methods=method, projection=projection, data_dir=data_dir, out=out)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder with a run.")],
    file: Annotated[Path, typer.Argument(help="Images: IDX (also gzipped), .npy or .png.")],
    method: Annotated[
        str | None, typer.Option(help="Which of the run's methods; default soft-topk.")
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Write CSV to this file, not to the terminal.")
    ] = None,
) -> None:
    """Classify images with a trained classifier: prints number, class and probability as CSV."""
    from softtopk.experiments import knn

    with usage_errors():
        typer.echo(knn.predict(run, file, method=method, data_dir=data_dir, out=out), nl=False)
