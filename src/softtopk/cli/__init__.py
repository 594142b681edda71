"""The command line: parsing and printing only.

cyclopts is optional and imported when a command is run, not when this module is.
"""

import os
import sys
from collections.abc import Sequence

from softtopk import __version__, _environment

from ._info import describe

INTERRUPTED = 130  # as a shell reports it


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command in `argv`, by default the process's arguments, and exit."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        import cyclopts  # noqa: F401  # to know which module is missing

        from ._app import run
    except ModuleNotFoundError as error:
        if error.name != "cyclopts":
            raise
        _run_without_cyclopts(args)
        return
    except KeyboardInterrupt:  # while the command line was still being loaded
        sys.exit(INTERRUPTED)
    try:
        code = run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of the output has seen enough, as in `... | head`
        # What is left in the buffer goes nowhere, else Python complains when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _run_without_cyclopts(args: list[str]) -> None:
    # A diagnosis has to work on the barest install, so `info` does not need the parser.
    if args == ["info"]:
        print(describe(_environment.collect()))
    elif args == ["--version"]:
        print(f"softtopk {__version__}")
    else:
        sys.exit(
            "softtopk: without cyclopts there are only 'softtopk info' and 'softtopk --version'; "
            "for the rest: pip install 'softtopk[cli]'"
        )
