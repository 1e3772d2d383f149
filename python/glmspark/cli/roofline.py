"""``glmspark roofline``: what memory and link allow, beside what others measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from glmspark.serving.memory import drafting_for
from glmspark.serving.model import draft_shape, model_shape, shipped_config
from glmspark.serving.profiles import Profile, load_profile, profile_names
from glmspark.serving.roofline import ACCEPTED, Ceiling, ceiling
from glmspark.serving.topology import TOPOLOGIES, topology

MIB = 2**20


def _ceilings(
    names: tuple[str, ...], profile: Profile, drafter: str, context: int
) -> list[Ceiling]:
    model = model_shape(shipped_config("glm-5.3-flash"))
    draft = draft_shape(shipped_config("dflash2"))
    drafting = drafting_for(profile.engine, drafter, draft)
    return [
        ceiling(model, topology(name), profile.engine, drafting, context)
        for name in names
    ]


def _rates(found: Ceiling) -> dict[str, dict[str, float]]:
    """Tokens a second per kind of text: the ceiling, and with experts apart."""
    accepted = ACCEPTED if found.method == "dflash2" else {"a step": 1.0}
    return {
        text: {
            "ceiling": round(found.tokens_s(count), 1),
            "experts_apart": round(found.tokens_s(count, apart=True), 1),
        }
        for text, count in accepted.items()
    }


def _text(found: Ceiling) -> list[str]:
    lines = [
        f"{found.topology}  {found.method}, dense {found.dense}, "
        f"{found.context_tokens} tokens of context, {found.reads.rows} rows a step",
        f"  {found.memory_ms:.1f} ms memory + {found.latency_ms:.1f} ms latency + "
        f"{found.link_ms:.2f} ms link",
    ]
    for kind, size in sorted(found.reads.by_kind.items(), key=lambda pair: -pair[1]):
        lines.append(f"  {size / MIB:9.1f} MiB  {kind}")
    for text, rate in _rates(found).items():
        lines.append(
            f"  {text}: at most {rate['ceiling']} tok/s; {rate['experts_apart']} if "
            "every row chose its own experts"
        )
    return lines


def _measured(profile: Profile) -> list[str]:
    lines = [
        "",
        "measured elsewhere, each under its own conditions, not like for like:",
    ]
    for row in profile.measured:
        lines.append(f"  {row.value:g} {row.unit}  {row.metric}")
        lines.append(f"      {row.conditions}; {row.source}")
    return lines


def _json(found: Ceiling) -> dict[str, Any]:
    return {**asdict(found), "tokens_s": _rates(found)}


@click.command(name="roofline")
@click.option("--topology", "names", multiple=True, type=click.Choice(list(TOPOLOGIES)))
@click.option("--profile", default="default", help="one of: glmspark profile list")
@click.option(
    "--drafter", default="dflash2", type=click.Choice(["dflash2", "mtp", "none"])
)
@click.option("--context", default=8192, type=click.IntRange(min=1), help="tokens")
@click.option("--json", "as_json", is_flag=True, help="for programs")
def command(
    names: tuple[str, ...], profile: str, drafter: str, context: int, *, as_json: bool
) -> None:
    """Bytes that one decoding step reads on each rank, and the speed they allow."""
    chosen = load_profile(profile)
    found = _ceilings(names or ("tp2", "tp3", "tp4"), chosen, drafter, context)
    if as_json:
        measured = [asdict(row) for row in chosen.measured]
        result = {"ceilings": [_json(one) for one in found], "measured": measured}
        click.echo(json.dumps(result, indent=1))
        return
    lines = [line for one in found for line in [*_text(one), ""]]
    everyone = [load_profile(name) for name in profile_names()]
    rows = [chosen, *(p for p in everyone if p.name == "speed-boost")]
    for one in {p.name: p for p in rows}.values():
        lines += _measured(one)
    click.echo("\n".join(lines))
