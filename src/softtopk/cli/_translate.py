"""The commands `softtopk translate ...`. Imported when a command is run: it needs typer."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ._errors import usage_errors

Data = Annotated[
    str | None,
    typer.Option(
        help="Folder with train.en, train.fr, valid.* and test.*, gzipped or not, or one that "
        "prepare made. Default: cldr, dates, amounts and names in English and French, for which "
        "no file is needed."
    ),
]
Source = Annotated[str | None, typer.Option(help="Suffix of the files to translate from; en.")]
Target = Annotated[str | None, typer.Option(help="Suffix of the files to translate into; fr.")]
MaxWords = Annotated[
    int | None, typer.Option(help="Use sentences of up to so many words, on the source side.")
]
Subset = Annotated[int | None, typer.Option(help="Use the first so many training pairs.")]
Vocab = Annotated[int | None, typer.Option(help="Pieces of each language, at most; 4000.")]
Normalization = Annotated[
    str | None,
    typer.Option(
        help="Of characters, by sentencepiece, before they are split: identity (the default), "
        "nmt_nfkc or nfkc."
    ),
]
Pieces = Annotated[
    Path | None,
    typer.Option(
        help="Folder with pieces.en.model and pieces.fr.model, of sentencepiece, to use in place "
        "of new ones."
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(help="Power of the length that log-likelihoods are divided by; the run's."),
]
HardAttention = Annotated[
    bool,
    typer.Option(
        "--hard-attention",
        help="Attend to exactly k source tokens, with a model trained by --attention soft-topk.",
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps, ...")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; default: torch's.")]


def app() -> typer.Typer:
    """The commands."""
    commands = typer.Typer(
        no_args_is_help=True,
        help="Train and compare translation models, as in the paper's Tables 2 and 3.",
    )
    for command in (prepare, train, evaluate, translate, attention, compare):
        commands.command()(command)
    return commands


def prepare(
    out: Annotated[Path, typer.Option(help="Folder to write; one that is there is kept.")],
    data: Data = None,
    source: Source = None,
    target: Target = None,
    max_words: MaxWords = None,
    subset: Subset = None,
    vocab: Vocab = None,
    normalization: Normalization = None,
    pieces: Pieces = None,
) -> None:
    """Split text into pieces of words, for several runs: give the folder to train as --data.

    A run that gets other data prepares them by itself.
    """
    from softtopk.experiments import translation

    given = _given(
        data=data,
        source=source,
        target=target,
        max_words=max_words,
        subset=subset,
        vocab=vocab,
        normalization=normalization,
    )
    with usage_errors():
        translation.prepare_data(out, pieces=pieces, given=given)


def train(
    out: Annotated[Path, typer.Option(help="Folder of the run; a new one, or see --resume.")],
    data: Data = None,
    source: Source = None,
    target: Target = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between them, or all: teacher-forcing, soft-beam (the "
            "default, the paper's), membership. The last two are mixed with teacher forcing."
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Begin with these weights in place of the pre-training: a finished run, whose "
            "pieces are then used, or the file of a model, with --pieces."
        ),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(help="One or several, as in 0,1,2; default 0.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, with its options; start it if there is none. "
            "Objectives and seeds may be added.",
        ),
    ] = False,
    pretrain_epochs: Annotated[
        int | None, typer.Option(help="Of teacher forcing before all objectives; 16.")
    ] = None,
    pretrain_lr: Annotated[
        float | None, typer.Option(help="Learning rate of the pre-training; 0.001.")
    ] = None,
    pretrain_final_lr: Annotated[
        float | None, typer.Option(help="That at its end; 0.0001.")
    ] = None,
    pretrain_warmup: Annotated[
        int | None,
        typer.Option(help="Updates over which it rises at the beginning; 0."),
    ] = None,
    updates: Annotated[
        int | None,
        typer.Option(help="Of each objective; 1000. 0 for the pre-training alone."),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; 0.0002.")] = None,
    final_lr: Annotated[float | None, typer.Option(help="That at the end; 0.00002.")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Of the learning rate: linear (the default), cosine or constant."),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam (the default) or sgd.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs in an update; 64.")] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest norm of the gradient; 1. 0 for any.")
    ] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="Of teacher forcing; 0.")] = None,
    scheduled_sampling: Annotated[
        float | None,
        typer.Option(help="Probability of the model's own token as input in teacher forcing; 0."),
    ] = None,
    rho: Annotated[
        float | None, typer.Option(help="Weight of teacher forcing in the others; 0.8.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam size in training; 5.")] = None,
    eps: Annotated[
        float | None,
        typer.Option(help="Temperature, in nats; 0.1 for soft-beam and 1 for membership."),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            help="What soft-beam scores the reference along: best (the paper's), until-departure "
            "or gold."
        ),
    ] = None,
    normalize: Annotated[
        str | None, typer.Option(help="Scale of the cost of soft-beam: row, batch or none.")
    ] = None,
    selection_clip: Annotated[
        float | None,
        typer.Option(
            help="Bound of the gradient through the selections of soft-beam, in units of that of "
            "one token; 0 stops it. Default: none."
        ),
    ] = None,
    solver: Annotated[
        str | None, typer.Option(help="Of soft-beam: exact, or sinkhorn with 200 iterations.")
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Of membership, for each sentence and step; 32.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="recurrent (the default, the paper's) or transformer.")
    ] = None,
    cell: Annotated[
        str | None, typer.Option(help="Of the recurrent model: gru (the default) or lstm.")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Size of the states, or width of a transformer; 256.")
    ] = None,
    embedding: Annotated[
        int | None, typer.Option(help="Size of the recurrent model's embeddings; 256.")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(help="Of a transformer, of its encoder and of its decoder; 2."),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Of each of a transformer's attentions; 4.")
    ] = None,
    feedforward: Annotated[
        int | None, typer.Option(help="Size of a transformer's hidden layers; 512.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="0.2.")] = None,
    tied: Annotated[
        bool | None,
        typer.Option("--tied/--no-tied", help="Use the target embeddings in the output layer."),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help="To the source: softmax (the default), or soft-topk, that of about k tokens."
        ),
    ] = None,
    attention_k: Annotated[
        int | None, typer.Option(help="Tokens to attend to, for soft-topk; 5.")
    ] = None,
    attention_eps: Annotated[
        float | None,
        typer.Option(help="Temperature of soft-topk, in units of the scores; 1."),
    ] = None,
    attention_in: Annotated[
        str | None,
        typer.Option(
            help="Where a transformer has soft-topk: cross (the default), to the source alone, or "
            "all, in its self-attentions too."
        ),
    ] = None,
    max_words: MaxWords = None,
    max_length: Annotated[
        int | None, typer.Option(help="Train on pairs of up to so many pieces; 60.")
    ] = None,
    subset: Subset = None,
    vocab: Vocab = None,
    normalization: Normalization = None,
    pieces: Pieces = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            help="Updates from one validation to the next; 250. The pre-training has one each "
            "epoch."
        ),
    ] = None,
    eval_sentences: Annotated[
        int | None, typer.Option(help="Validate on so many sentences while training.")
    ] = None,
    eval_beams: Annotated[
        str | None,
        typer.Option(help="Beam sizes to report; 1,5. Validations have the largest."),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Power of the length that log-likelihoods are divided by; 1."),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after so many validations without a better BLEU; 5. 0: never."),
    ] = None,
    test: Annotated[
        bool | None,
        typer.Option(
            "--test/--no-test",
            help="Leave the test set alone while tuning; --resume --test makes up for it.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu (the default), cuda, mps, ...")] = None,
    threads: Threads = None,
) -> None:
    """Pre-train by teacher forcing, go on with each objective, and print the table.

    The folder gets a run for each stage and seed, the data, table.md and table.json.
    The weights that are kept are those with the best validation BLEU.
    Ctrl-C stops it after the step at hand; --resume goes on to the same result.
    """
    from softtopk.experiments import translation

    # By name, as the settings have them; an option that is not given has their default.
    given = _given(
        data=data, source=source, target=target, max_words=max_words, max_length=max_length,
        subset=subset, vocab=vocab, normalization=normalization, model=model, cell=cell,
        hidden=hidden, embedding=embedding, layers=layers, heads=heads, feedforward=feedforward,
        dropout=dropout, tied=tied, attention=attention, attention_k=attention_k,
        attention_eps=attention_eps, attention_in=attention_in, pretrain_epochs=pretrain_epochs,
        pretrain_lr=pretrain_lr, pretrain_final_lr=pretrain_final_lr,
        pretrain_warmup=pretrain_warmup, updates=updates, lr=lr, final_lr=final_lr,
        schedule=schedule, optimizer=optimizer, batch_size=batch_size, clip=clip,
        label_smoothing=label_smoothing, scheduled_sampling=scheduled_sampling, rho=rho,
        beam=beam, eps=eps, follow=follow, solver=solver,
        selection_clip=selection_clip, candidates=candidates,
        eval_every=eval_every, eval_sentences=eval_sentences, length_penalty=length_penalty,
        patience=patience, test=test, device=device, threads=threads,
    )  # fmt: skip
    if normalize is not None:
        given["normalize"] = None if normalize == "none" else normalize
    with usage_errors():
        if eval_beams is not None:
            given["eval_beams"] = translation.parse_beams("--eval-beams", eval_beams)
        plan = translation.make_plan(
            out, resume=resume, objectives=objective, seeds=seed, init=init, pieces=pieces,
            given=given,
        )  # fmt: skip
        code = translation.train(out, plan, resume=resume)
    raise typer.Exit(code)


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder with a run, or with a part of one.")],
    beam: Annotated[str, typer.Option(help="Beam sizes, with commas between them.")] = "1,5",
    split: Annotated[str, typer.Option(help="valid or test.")] = "test",
    length_penalty: LengthPenalty = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the table here, as Markdown and as JSON.")
    ] = None,
    hard_attention: HardAttention = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Print BLEU and chrF of all finished models of a run, and to how many tokens they attend."""
    from softtopk.experiments import translation

    with usage_errors():
        translation.evaluate(
            run, beams=beam, split=split, length_penalty=length_penalty, out=out,
            hard_attention=hard_attention, device=device, threads=threads,
        )  # fmt: skip


def translate(
    run: Annotated[Path, typer.Argument(help="Folder with a run, or with a part of one.")],
    file: Annotated[
        Path | None,
        typer.Argument(help="Text, a sentence on every line; default: standard input."),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Beam size; default: the largest that the run reports.")
    ] = None,
    n_best: Annotated[
        int,
        typer.Option(help="Above 1: so many for each line, as 'line ||| translation ||| score'."),
    ] = 1,
    length_penalty: LengthPenalty = None,
    batch_size: Annotated[
        int, typer.Option(help="Lines to read before their translations are printed.")
    ] = 64,
    hard_attention: HardAttention = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Translate text, line by line, to standard output. Blank lines stay where they are."""
    from softtopk.experiments import translation

    with usage_errors():
        lines = translation.read_lines(file) if file else iter(sys.stdin.buffer)
        for line in translation.translate(
            run, lines, name=str(file or "standard input"), beam=beam, n_best=n_best,
            length_penalty=length_penalty, batch_size=batch_size, hard_attention=hard_attention,
            device=device, threads=threads,
        ):  # fmt: skip
            typer.echo(line)


def attention(
    run: Annotated[Path, typer.Argument(help="Folder with a run, or with a part of one.")],
    text: Annotated[str, typer.Option(help="The sentence to translate.")],
    translation: Annotated[
        str | None, typer.Option(help="Its translation; default: the model's own.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Picture to write, .png, .svg or .pdf.")] = Path(
        "attention.png"
    ),
    hard_attention: HardAttention = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Draw where in a sentence a model looks, and print what it looks at most for each token."""
    from softtopk.experiments.translation import show_attention

    with usage_errors():
        show_attention(
            run, text, translation=translation, out=out, hard_attention=hard_attention,
            device=device, threads=threads,
        )  # fmt: skip


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders with runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the table here, as Markdown and as JSON.")
    ] = None,
) -> None:
    """Make the table of objectives from the records of one or several runs."""
    from softtopk.experiments import translation

    with usage_errors():
        translation.compare(runs, out)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
