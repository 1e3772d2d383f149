"""``glmspark weights``: lock, fetch, import, export, apply."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from glmspark.cli.weights import (
    chosen,
    json_option,
    manifests_argument,
    put,
    store_option,
)
from glmspark.weights import progress as bars
from glmspark.weights.progress import human_bytes
from glmspark.weights.store import Store

if TYPE_CHECKING:
    from glmspark.weights.bundle import BundleResult


_POSITIVE = click.IntRange(min=1)


@click.command("lock")
@click.argument("repo", metavar="REPO[@REV]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The lock file.")
@json_option
def lock_command(*, repo: str, output: Path | None, as_json: bool) -> None:
    """Resolve REPO[@REV] to a commit and write path, size and hash of every file."""
    from glmspark.weights import hublock

    name, _, revision = repo.partition("@")
    with tempfile.TemporaryDirectory() as scratch, bars.for_terminal() as out:
        manifest = hublock.lock(name, revision or "main", Path(scratch), out)
    path = output or Path(f"{manifest.slug}.lock.json")
    path.write_text(manifest.dumps(), encoding="utf-8")
    data = {"lock": str(path), "ref": manifest.ref, "files": len(manifest.files)}
    put(
        data | {"bytes": manifest.total_bytes},
        f"{path}: {manifest.ref}, {len(manifest.files)} files, "
        f"{human_bytes(manifest.total_bytes)}",
        as_json=as_json,
    )


@click.command("fetch")
@manifests_argument
@store_option
@click.option(
    "--workers", default=4, type=_POSITIVE, show_default=True, help="Files at once."
)
@click.option(
    "--attempts",
    default=5,
    type=_POSITIVE,
    show_default=True,
    help="Tries without a byte.",
)
@click.option(
    "--stall", default=30, type=_POSITIVE, show_default=True, help="Seconds of silence."
)
@click.option("--no-xet", is_flag=True, help="Plain HTTP even where xet is there.")
@click.option("--dry-run", is_flag=True, help="Say what is missing, fetch nothing.")
@json_option
def fetch_command(  # noqa: PLR0913 - one for each option
    *,
    words: tuple[str, ...],
    store_path: Path,
    workers: int,
    attempts: int,
    stall: int,
    no_xet: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Bring the missing blobs of the MANIFESTs from the Hub.

    The token is HF_TOKEN or the Hub's own token file; HF_ENDPOINT is honoured.
    """
    from glmspark.weights import fetch

    store = Store.open(store_path, create=True)
    options = fetch.FetchOptions(workers, attempts, stall, allow_xet=not no_xet)
    rows = []
    for manifest in chosen(store, words):
        missing = store.missing(manifest)
        size = sum(entry.size for entry in missing)
        click.echo(
            f"{manifest.ref}: {len(missing)} of {len(manifest.files)} files missing, "
            f"{human_bytes(size)}",
            err=True,
        )
        row = {"name": manifest.slug, "missing": len(missing), "missing_bytes": size}
        if not dry_run:
            with bars.for_terminal() as out:
                done = fetch.fetch(store, manifest, options, out)
            row |= {"fetched": done.fetched, "fetched_bytes": done.fetched_bytes}
            row |= {"resumed_bytes": done.resumed_bytes, "already": done.already}
        rows.append(row)
    put(rows, "\n".join(_fetched(row) for row in rows), as_json=as_json)


def _fetched(row: dict[str, object]) -> str:
    if "fetched" not in row:
        return f"{row['name']}: {row['missing']} files missing"
    if not row["fetched"]:
        return f"{row['name']}: already complete"
    return f"{row['name']}: complete, {row['fetched']} blobs fetched"


@click.command("import")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@manifests_argument
@store_option
@json_option
def import_command(
    *, source: Path, words: tuple[str, ...], store_path: Path, as_json: bool
) -> None:
    """Take from SOURCE (a Hub cache, snapshot or bundle) every file that is right.

    Shares blocks (reflink), else the inode (hard link), else copies. SOURCE is not
    changed; a hard-linked file must not be edited in place afterwards.
    """
    from glmspark.weights import builtin, importer

    store = Store.open(store_path, create=True)
    if words:
        wanted = chosen(store, words)
    else:
        shipped = {m.slug: m for m in builtin.builtins().values()}
        wanted = list((shipped | store.manifests()).values())
    with bars.for_terminal() as out:
        report = importer.import_from(
            store, source, wanted, chosen=bool(words), progress=out
        )
    for path, reason in report.unusable:
        click.echo(f"not used: {path}: {reason}", err=True)
    text = (
        f"{report.imported} blobs imported, {human_bytes(report.imported_bytes)}: "
        f"{report.reflinked} reflinked, {report.hard_linked} hard-linked, "
        f"{report.copied} copied; {len(report.unusable)} files not used"
    )
    put(report.to_json(), text, as_json=as_json)


@click.command("export")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@manifests_argument
@store_option
@json_option
def export_command(
    *, folder: Path, words: tuple[str, ...], store_path: Path, as_json: bool
) -> None:
    """Write blobs, manifests and checksums of the MANIFESTs to FOLDER."""
    from glmspark.weights import bundle

    store = Store.open(store_path)
    with bars.for_terminal() as out:
        done = bundle.export(store, folder, chosen(store, words), out)
    _put_bundle(done, f"exported to {folder}", as_json=as_json)


@click.command("apply")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@store_option
@json_option
def apply_command(*, folder: Path, store_path: Path, as_json: bool) -> None:
    """Bring in the bundle in FOLDER; the store changes only once all of it is right."""
    from glmspark.weights import bundle

    store = Store.open(store_path, create=True)
    with bars.for_terminal() as out:
        done = bundle.apply(store, folder, out)
    _put_bundle(done, f"applied from {folder}", as_json=as_json)


def _put_bundle(done: BundleResult, what: str, *, as_json: bool) -> None:
    data = {
        "moved": done.moved,
        "moved_bytes": done.moved_bytes,
        "already": done.already,
        "manifests": list(done.manifests),
    }
    text = f"{done.moved} blobs {what}, {human_bytes(done.moved_bytes)}"
    put(data, f"{text}; {done.already} were there already", as_json=as_json)
