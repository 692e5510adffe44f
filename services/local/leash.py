"""Runs a command that ends when its parent does: ``python -m services.local.leash PARENT COMMAND...``

Linux delivers SIGTERM to the command when the parent's thread is gone, however it went; on
other systems the command simply runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the line above
            raise SystemExit("parent is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
