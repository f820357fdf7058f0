"""What the child processes of the jobs share: a request on stdin, JSON lines on stdout, an error as a line.

The parent keeps stdin open for as long as it wants the child; at its end the child ends too.
"""

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from daisychain.errors import DaisyError

REQUEST_BYTES = 1_000_000


def emit(kind: str, **fields: object) -> None:
    """One JSON line for the parent."""
    sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
    sys.stdout.flush()


def request_from_stdin() -> dict[str, Any]:
    """The first line of stdin as a JSON object; from then on the end of stdin ends this process."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < REQUEST_BYTES:
        # Byte by byte and by os.read: a buffered stdin would be locked by the watcher when Python shuts down.
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    request = json.loads(line)
    if not isinstance(request, dict):
        raise ValueError("the request is no JSON object")
    threading.Thread(target=_end_with_stdin, daemon=True, name="stdin").start()
    return request


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def run(work: Callable[[], None]) -> int:
    """Work and return the exit code; what goes wrong becomes one error line, and a fault's traceback on stderr."""
    try:
        work()
    except DaisyError as error:
        return _failed(error.exit_code, error.what, error.remedy)
    except BrokenPipeError:
        return 1
    except MemoryError:
        return _failed(1, "not enough memory for this file", "Close other programs, or give a smaller file")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(1, f"{where}{error.strerror or error}", "Check that the disk has room and can be written to")
    except Exception as error:
        traceback.print_exc()
        return _failed(1, f"{type(error).__name__}: {error}", "This is a fault in DaisyChain; please report it")
    return 0


def _failed(code: int, what: str, remedy: str) -> int:
    emit("error", exit=code, what=what, remedy=remedy)
    return code
