"""Set the scene of a rank's process: it ends with its parent, its /dev/shm is its own.

Standard library alone: it is sent to other nodes, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_NOSUID_NODEV = 2 | 4
MS_REC_PRIVATE = 0x4000 | (1 << 18)


def die_with_parent(libc: ctypes.CDLL) -> None:
    """Ask the kernel to end this process when the supervisor ends, however it does."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def private_shm(libc: ctypes.CDLL) -> bool:
    """Give this process a /dev/shm of its own; False where the kernel refuses.

    A killed engine leaves shared-memory files behind (24 to 160 MiB each); in a mount
    namespace of its own they go with the last process. Without root, a user namespace
    with this very user in it allows the mount.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        return False
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    if libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) != 0:
        return False
    mounted = libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", MS_NOSUID_NODEV, b"mode=1777")
    return bool(mounted == 0)
