"""What a supervisor is given: the folder of a boot, and the boot itself."""

from __future__ import annotations

import shutil
from pathlib import Path

from glmspark.boot import Api, Boot, Limits, boot_folders, new_boot_name, stale_boots
from glmspark.paths import KitPaths
from glmspark.plan import Plan, api_url
from glmspark.schema import Kit


def new_boot_folder(paths: KitPaths) -> Path:
    """The folder of a new boot; the oldest ones beyond those that are kept go."""
    folder = paths.boots / new_boot_name()
    folder.mkdir(mode=0o700, parents=True)
    for old in stale_boots(boot_folders(paths.boots)):
        shutil.rmtree(old, ignore_errors=True)
    return folder


def make_boot(kit: Kit, name: str, plan: Plan, key_file: str) -> Boot:
    """The boot that carries out ``plan``; workers are launched first, the head last."""
    limits = kit.timeouts
    key = key_file if kit.needs_key else ""
    return Boot(
        name=name,
        kit=kit.name,
        digest=plan.digest,
        master_port=kit.ports.master,
        limits=Limits(
            limits.launch_s,
            limits.stall_s,
            limits.ready_s,
            limits.canary_s,
            limits.stop_s,
        ),
        api=Api(kit.serve.host, kit.serve.port, kit.serve.name, api_url(kit), key),
        ranks=tuple(reversed(plan.ranks)),
        trial=plan.trial,
    )
