"""podman with a storage folder of its own, for images of the stand-in.

The stand-in's programs are the host's, so ``run`` binds /usr and such into the
container; what the image brings (its store, its links, its user) is what runs.
"""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import pytest

from tests.nix.netns import python_homes

needs_podman = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("podman") and shutil.which("crun")),
    reason="needs root, podman and crun (apt install podman crun)",
)

# crun refuses a host that mounts cgroups of both versions; the containers here need
# none, so podman is shown an empty tree of version 2 where the host's is not that.
_PLAIN_CGROUPS = """
set -eu
mount --make-rprivate /
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
  if mountpoint -q /sys/fs/cgroup; then umount -R /sys/fs/cgroup; fi
  mount -t cgroup2 none /sys/fs/cgroup
fi
exec "$@"
"""
_STORAGE = (
    '[storage]\ndriver = "overlay"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'
)


def storage(folder: Path) -> dict[str, str]:
    """Environment of a podman that keeps everything below ``folder``."""
    folder.mkdir(parents=True)
    conf = folder / "storage.conf"
    conf.write_text(_STORAGE.format(folder))
    return {"CONTAINERS_STORAGE_CONF": str(conf)}


def with_plain_cgroups(*words: str) -> list[str]:
    """A command in a mount namespace where crun takes the cgroups as they are."""
    return ["unshare", "--mount", "sh", "-c", _PLAIN_CGROUPS, "podman", *words]


def container(image: str, *words: str, entrypoint: str = "") -> list[str]:
    """The argv of ``podman run`` without network, limits no higher than our own."""
    limits = []
    for name in ("nofile", "nproc"):
        # podman's own defaults may be above ours, which only CAP_SYS_RESOURCE allows
        hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
        value = 1000 if hard == resource.RLIM_INFINITY else min(hard, 1000)
        limits.append(f"--ulimit={name}={value}:{value}")
    folders = ["/usr", "/lib", "/lib64", *python_homes()]
    volumes = [f"--volume={f}:{f}:ro" for f in folders]
    command = [f"--entrypoint={entrypoint}"] if entrypoint else []
    flags = ["--rm", "--network=none", "--cgroups=disabled", *limits, *volumes]
    return with_plain_cgroups("podman", "run", *flags, *command, image, *words)
