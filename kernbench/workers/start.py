"""The file that a worker process runs: `python start.py MODULE SYS_PATH`.

Its first statements take the standard streams away from everything that comes later: prints of
Python, writes of C code and of child processes, at import time and later, cannot break the private
stream of responses, and nobody reads the requests but `serving.serve`.
"""

import os
import sys


def _private_streams() -> tuple[int, int]:
    """Returns private copies of descriptors 0 and 1; 0 then reads nothing, and 1 leads to 2.

    Copies are not inheritable, so child processes never hold them.
    """
    requests, responses = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, responses


if __name__ == "__main__":
    streams = _private_streams()

    import json

    # The parent's, in place of the folder of this file.
    sys.path[:] = json.loads(sys.argv[2])

    from kernbench.workers.serving import serve

    serve(*streams, sys.argv[1])
