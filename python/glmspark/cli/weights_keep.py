"""``glmspark weights``: verify, link, list, pin, forget, gc."""

from __future__ import annotations

from pathlib import Path

import click

from glmspark.cli.weights import (
    chosen,
    json_option,
    manifests_argument,
    put,
    store_option,
)
from glmspark.errors import ConfigError, ExitCode
from glmspark.weights import progress as bars
from glmspark.weights.progress import human_bytes
from glmspark.weights.store import Store

_SHOWN = 20


@click.command("verify")
@manifests_argument
@store_option
@click.option("--deep", is_flag=True, help="Read every byte, on all cores.")
@json_option
def verify_command(
    *, words: tuple[str, ...], store_path: Path, deep: bool, as_json: bool
) -> int:
    """Check the MANIFESTs' blobs (all blobs if none is named); exit 7 if not all right.

    Without --deep only blobs whose size, mtime or inode changed are read. A damaged
    blob is moved to quarantine/ and named with the files that it served.
    """
    from glmspark.weights import verify

    store = Store.open(store_path)
    with bars.for_terminal() as out:
        manifests = chosen(store, words) if words else None
        report = verify.verify(store, manifests, deep=deep, progress=out)
    for damage in report.damaged:
        files = ", ".join(damage.files) or "no manifest"
        words_ = f"damaged: {damage.blob} {damage.reason}; it served {files}; "
        where = f"moved to {damage.moved_to}" if damage.moved_to else "not moved"
        click.echo(f"{words_}{where}", err=True)
    for file in report.missing[:_SHOWN]:
        click.echo(f"missing: {file}", err=True)
    text = (
        f"{report.checked} blobs checked, {report.hashed} read "
        f"({human_bytes(report.hashed_bytes)}), {len(report.damaged)} damaged, "
        f"{len(report.missing)} files missing"
    )
    put(report.to_json(), text, as_json=as_json)
    if report.is_ok:
        return ExitCode.DONE
    click.echo(
        "hint: glmspark weights fetch (or share, from a head that has it)", err=True
    )
    return ExitCode.INTEGRITY


@click.command("link")
@manifests_argument
@store_option
@json_option
def link_command(*, words: tuple[str, ...], store_path: Path, as_json: bool) -> None:
    """Build the view of each MANIFEST; prints the folder to open.

    The printed folder never changes; the name beside it always leads to the newest.
    """
    from glmspark.weights import view

    store = Store.open(store_path, create=True)
    rows, lines = [], []
    for manifest in chosen(store, words):
        made = view.link(store, manifest)
        rows.append(
            {
                "manifest": manifest.slug,
                "path": str(made.path),
                "folder": str(made.folder),
                "new": made.is_new,
            }
        )
        lines.append(f"{made.folder}{'' if made.is_new else ' (already)'}")
    put(rows, "\n".join(lines), as_json=as_json)


@click.command("list")
@store_option
@json_option
def list_command(*, store_path: Path, as_json: bool) -> None:
    """Say which manifests are here, what they lack, and which views are in use."""
    from glmspark.weights import gc

    store = Store.open(store_path)
    rows = gc.inventory(store)
    lines = []
    for row in rows:
        state = "complete"
        if row["missing_files"]:
            lacks = human_bytes(row["missing_bytes"])
            state = f"lacks {row['missing_files']} files, {lacks}"
        use = ", in use" if row["in_use"] else ""
        linked = ", linked" if row["view"] else ""
        size = human_bytes(row["bytes"])
        lines.append(
            f"{row['name']}  {row['files']} files, {size}, {state}{linked}{use}"
        )
    lines.append(f"{len(store.blobs())} blobs in {store.root}")
    put(
        {"store": str(store.root), "manifests": rows}, "\n".join(lines), as_json=as_json
    )


@click.command("pin")
@click.argument("word", metavar="MANIFEST")
@click.argument("pair", metavar="PATH=FILE")
@click.option("--sha256", default="", help="What FILE must hash to.")
@store_option
@json_option
def pin_command(
    *, word: str, pair: str, sha256: str, store_path: Path, as_json: bool
) -> None:
    """Place FILE at PATH in the view of MANIFEST, over the checkpoint's own file.

    For a chat template that the checkpoint does not have: it is then verified, shared
    and carried like the rest. `forget` and `fetch` undo it.
    """
    from glmspark.weights import pin

    path, equals, file = pair.partition("=")
    if not (path and equals and file):
        raise ConfigError(f"cannot read {pair!r}", hint="pin MANIFEST PATH=FILE")
    store = Store.open(store_path, create=True)
    (manifest,) = chosen(store, (word,))
    pinned = pin.pin(store, manifest, path, Path(file), sha256)
    entry = next(e for e in pinned.files if e.path == path)
    data = {"manifest": pinned.slug, "path": path, "sha256": entry.sha256}
    text = f"{path} is pinned in {pinned.slug} ({entry.sha256}); link builds the view"
    put(data, text, as_json=as_json)


@click.command("forget")
@click.argument("word", metavar="MANIFEST")
@store_option
def forget_command(*, word: str, store_path: Path) -> None:
    """Drop MANIFEST and its view's name; refused while a rank uses it."""
    from glmspark.weights import gc

    store = Store.open(store_path, create=True)
    (manifest,) = chosen(store, (word,))
    gc.forget(store, manifest.slug)
    click.echo(f"{manifest.slug} is forgotten; glmspark weights gc frees its blobs")


@click.command("gc")
@store_option
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--quarantine", is_flag=True, help="Damaged blobs go as well.")
@json_option
def gc_command(
    *, store_path: Path, dry_run: bool, quarantine: bool, as_json: bool
) -> None:
    """Remove what no manifest and no running rank needs."""
    from glmspark.weights import gc

    store = Store.open(store_path, create=not dry_run)
    garbage = gc.collect(store, dry_run=dry_run, quarantine=quarantine)
    verb = "would go" if dry_run else "went"
    lines = [f"blob {blob} {human_bytes(size)}" for blob, size in garbage.blobs]
    lines += [f"part {path}" for path, _ in garbage.parts]
    lines += [f"view {path}" for path in garbage.views]
    lines += [f"quarantined {path}" for path, _ in garbage.quarantined]
    lines.append(f"{human_bytes(garbage.freed_bytes)} {verb}")
    put({"dry_run": dry_run} | garbage.to_json(), "\n".join(lines), as_json=as_json)
