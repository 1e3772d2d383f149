"""Lock: ask the Hub once what a repository holds, at a commit that cannot move."""

from __future__ import annotations

import re
import time
from pathlib import Path

from glmspark.errors import CommandError
from glmspark.weights import hub
from glmspark.weights import trouble as troubles
from glmspark.weights.manifest import (
    FileEntry,
    Manifest,
    check_name,
    make_manifest,
)
from glmspark.weights.progress import Progress

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ATTEMPTS = 4


def _ask(repo: str, revision: str) -> Manifest:
    from huggingface_hub import HfApi, RepoFile

    api = HfApi(token=hub.token() or False)
    commit = revision
    if not _COMMIT.fullmatch(revision):
        info = api.repo_info(repo, revision=revision)
        commit = str(info.sha)
    files = [
        FileEntry(
            path=item.path,
            size=item.size,
            sha256=item.lfs.sha256 if item.lfs else "",
            git_oid="" if item.lfs else item.blob_id,
        )
        for item in api.list_repo_tree(repo, recursive=True, revision=commit)
        if isinstance(item, RepoFile)
    ]
    return make_manifest(repo, commit, files)


def lock(
    repo: str, revision: str, scratch: Path, progress: Progress | None = None
) -> Manifest:
    """The manifest of ``repo`` at ``revision`` (a branch, tag or commit) as it is now.

    Large files have their sha256; small ones have git's blob id, and get a sha256
    when they are fetched. CommandError says what the Hub refused.
    """
    progress = progress or Progress()
    check_name(repo)
    hub.prepare(scratch, stall_s=30, allow_xet=False)
    source = hub.Source(repo, revision)
    failures = 0
    with hub.narrated(progress):
        while True:
            try:
                return _ask(repo, revision)
            except (ValueError, KeyError, TypeError) as error:
                raise CommandError(
                    f"what {hub.endpoint()} answers is no file list of {source}: "
                    f"{type(error).__name__}",
                    hint="a proxy or login page may stand between; check HF_ENDPOINT",
                ) from error
            except troubles.transfer_errors() as error:
                trouble = troubles.explain(error, f"the file list of {source}", source)
                failures += 1
                if not trouble.retry or failures >= _ATTEMPTS:
                    raise trouble.error from error
                time.sleep(troubles.backoff_s(failures, trouble.wait_s))
