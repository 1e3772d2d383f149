"""The drafter's folder for three ranks: its files by link, its config.json padded.

Runs on a node on behalf of the head: standard library alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def make(*, view: str, folder: str, changes: Mapping[str, Any]) -> str:
    """Make ``folder`` from the drafter's ``view`` with ``changes`` to its config.json.

    Nothing is done where it is right already. Gives the folder.

    Raises:
        OSError: the view is not there, or the folder cannot be made.
    """
    source, target = Path(view), Path(folder)
    config = json.loads((source / "config.json").read_text("utf-8"))
    text = json.dumps({**config, **changes}, indent=1, sort_keys=True)
    links = {
        one.name: os.path.realpath(one)
        for one in source.iterdir()
        if one.name != "config.json"
    }
    if _is_made(target, text, links):
        return folder
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, blob in links.items():
        (fresh / name).symlink_to(blob)
    (fresh / "config.json").write_text(text, "utf-8")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    return folder


def _is_made(target: Path, text: str, links: Mapping[str, str]) -> bool:
    try:
        if (target / "config.json").read_text("utf-8") != text:
            return False
        found = {
            one.name: str(one.readlink())
            for one in target.iterdir()
            if one.name != "config.json"
        }
    except OSError:
        return False
    return found == dict(links)
