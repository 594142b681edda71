"""The code of docs/distributed.md runs, in processes that have joined each other already."""

import contextlib
import io
import re
from pathlib import Path

from ranks import run_alone

PAGE = Path(__file__).resolve().parents[2] / "docs" / "distributed.md"


def execute(group, code):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    return printed.getvalue()


def test_the_page_runs():
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    joining = re.search(r"^dist\.init_process_group.*$", code, re.MULTILINE)
    assert joining
    for rank, printed in enumerate(run_alone(2, execute, code.replace(joining[0], ""))):
        assert printed == f"rank {rank} has (8, {250_000 + rank})\n(Shard(dim=1),)\n"
