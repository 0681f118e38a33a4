"""The process in which the HDF5 library looks at files that may kill it.

Reads requests, a line of JSON each, from standard input, and answers on standard output, as
`hyperslab.soundness.messages` says. Ends when its input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from hyperslab.soundness.messages import send_message
from hyperslab.soundness.objects import survey_file

__all__ = ["main"]


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        _limit(int(request["memory_nbytes"]))
        survey_file(
            request["path"],
            base=request["base"],
            axis=request["axis"],
            elements=request["elements"],
            skip=frozenset(request["skip"]),
            say=lambda facts, columns: send_message(answers, facts, columns),
        )
        send_message(answers, {"kind": "end"}, [])


def _limit(memory_nbytes: int) -> None:
    """Leave no core file behind, and take no more address space than allowed."""
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            memory_nbytes = min(memory_nbytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (memory_nbytes, hard))
