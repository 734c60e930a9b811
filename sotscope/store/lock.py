"""The writer's lock: an flock on the journal, which the kernel lets go when the writer dies."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if sys.platform == "win32":  # pragma: no cover - Windows
    import msvcrt

    def try_lock(handle: int, *, shared: bool = False) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def try_lock(handle: int, *, shared: bool = False) -> bool:
        """Take the lock; False when another open file holds it. Shared ones keep out the exclusive one only.

        A file system without locks (some network ones) lets everybody in.
        """
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def unlock(handle: int) -> None:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)


def is_held(path: str | os.PathLike[str]) -> bool:
    """Whether a living writer holds the journal at ``path``. Writes nothing; readers do not see each other."""
    handle = os.open(path, os.O_RDONLY)
    try:
        if try_lock(handle, shared=True):
            unlock(handle)
            return False
        return True
    finally:
        os.close(handle)
