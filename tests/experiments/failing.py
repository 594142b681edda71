"""Started by torchrun: the command `softtopk`, to which something happens once, in step 12.

The last process is killed, or, with SIGNAL=INT in the environment, torchrun gets that signal.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from softtopk import cli, knn

LAST = 11
_advance = knn.Training.advance


def advance(self: Any) -> dict[str, float]:
    if self.step == LAST and "SIGNAL" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    if self.step == LAST:
        # It goes on only when the signal has come back from torchrun: it cannot be too late.
        interrupt = signal.getsignal(signal.SIGTERM).__self__  # type: ignore[union-attr]
        os.kill(os.getppid(), signal.Signals[f"SIG{os.environ['SIGNAL']}"])
        while not interrupt.requested:
            time.sleep(0.01)
    return _advance(self)


if __name__ == "__main__":
    first_time = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first_time and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        knn.Training.advance = advance  # type: ignore[method-assign]
    cli.main()
