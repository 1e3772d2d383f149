"""``glmspark init``: write kit.toml from what the nodes show."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from glmspark.errors import ConfigError, PreflightError


def _names(targets: tuple[str, ...]) -> dict[str, str]:
    """A name for each ssh target: its host part, fit for a node's name."""
    found: dict[str, str] = {}
    for number, target in enumerate(targets, start=1):
        host = target.rpartition("@")[2].partition(".")[0].lower()
        plain = re.sub(r"[^a-z0-9-]", "-", host).strip("-")[:32]
        name = plain if plain and not plain.isdigit() else f"spark-{number}"
        if target == "local":
            name = "spark-1" if "spark-1" not in found else f"spark-{number}"
        found[name if name not in found else f"{name}-{number}"] = target
    return found


def _drafter(asked: str | None, *, gpu: bool) -> str:
    """The drafter: the flag's, or one question on a terminal; no answer means mtp."""
    if asked or not gpu:
        return asked or "none"
    if sys.stdin.isatty() and sys.stderr.isatty():
        text = (
            "The DFlash2 drafter is faster and licensed for non-commercial use only "
            "(CC BY-NC-ND 4.0). Use it?"
        )
        return "dflash2" if click.confirm(text, default=False, err=True) else "mtp"
    return "mtp"


@click.command(name="init")
@click.argument("targets", nargs=-1, required=True, metavar="SSH_TARGET...")
@click.option("--name", default="spark", show_default=True, help="Name of the kit.")
@click.option("--output", default="kit.toml", show_default=True, metavar="FILE")
@click.option(
    "--dry-run", is_flag=True, help="Print the facts and the kit; write none."
)
@click.option(
    "--drafter",
    type=click.Choice(["dflash2", "mtp", "none"]),
    help="Speculative decoding; dflash2 is licensed for non-commercial use only.",
)
@click.option(
    "--runtime",
    type=click.Choice(["nix", "oci", "venv"]),
    help="What brings the engine to the nodes; default: what they have.",
)
@click.option("--ssh-config", default="", metavar="FILE", help="OpenSSH configuration.")
@click.option("--state", default="", metavar="FOLDER", help="Sets paths.state.")
@click.option("--trust-hosts", is_flag=True, help="Keep the host keys that are shown.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(targets: tuple[str, ...], **how: Any) -> None:
    """Find out how the nodes are cabled and write a commented kit.toml.

    SSH_TARGET is user@host or an alias of your ssh configuration, the head first;
    "local" is this machine. No network setting is changed.
    """
    from glmspark.initkit import ports_to_hear, propose, render, require_cabling

    output = Path(how["output"])
    if output.exists() and not how["force"] and not how["dry_run"]:
        raise ConfigError(f"{output} exists", hint="add --force to replace it")
    names = _names(targets)
    kit = _asking_kit(names, how)
    views = _ask(kit, how)
    proposal = propose(views, names, _hear(kit, ports_to_hear(views)))
    if how["dry_run"]:
        click.echo("\n".join(proposal.decided()), err=True)
    require_cabling(proposal)
    gpu = all(view.facts.gpus for view in views)
    extra = {"paths.state": how["state"], "paths.ssh_config": how["ssh_config"]}
    more = {key: f'"{Path(value).absolute()}"' for key, value in extra.items() if value}
    drafter = _drafter(how["drafter"], gpu=gpu)
    text = render(proposal, how["name"], drafter, more, how["runtime"] or "")
    if how["dry_run"]:
        click.echo(text, nl=False)
        return
    output.write_text(text)
    click.echo(str(output))
    click.echo("next: glmspark doctor, then glmspark start", err=True)


def first_contact(remote: Any, *, trust: bool) -> None:
    """Show the key of a host that is not known yet, and keep it if that is agreed to.

    What cannot be reached is left to the asking, which says why.
    """
    from glmspark.hostkeys import ask_key, keep
    from glmspark.remoteerrors import RemoteError

    try:
        remote.connect()
    except RemoteError as error:
        if error.kind != "unknown":
            return
        key = ask_key(remote)
        line = f"first contact with {key.names}: {key.kind} {key.fingerprint}"
        click.echo(line, err=True)
        if not trust and sys.stdin.isatty():
            trust = click.confirm("Is this the host's fingerprint?", err=True)
        if trust:
            keep(remote, key)


def _asking_kit(names: dict[str, str], how: dict[str, Any]) -> Any:
    """A kit to ask the nodes with; their addresses are what the answers will tell."""
    from glmspark.schema import Engine, Kit, Node, Topology

    nodes = tuple(
        Node(name=name, ssh=target, fabric=f"127.1.0.{number}")
        for number, (name, target) in enumerate(names.items(), start=1)
    )
    settings = {"state": how["state"], "ssh_config": how["ssh_config"]}
    return Kit.model_construct(
        name=how["name"],
        topology=Topology.LOOPBACK,
        engine=Engine.STUB,
        nodes=nodes,
        paths=type(Kit.model_fields["paths"].default)(**settings),
    )


def _hear(kit: Any, ports: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Who answers on the ports without addresses; nothing where it cannot be asked."""
    from glmspark import reach
    from glmspark.doctor import remote_of
    from glmspark.paths import kit_paths
    from glmspark.remote import in_parallel
    from glmspark.remoteerrors import RemoteError

    paths = kit_paths(kit)
    asked = [node for node in kit.nodes if ports.get(node.name)]

    def one(node: Any) -> dict[str, list[str]]:
        names = ports[node.name]
        if node.ssh == "local":
            return reach.hear(names)
        arguments = {"netdevs": names}
        remote = remote_of(kit, node, paths)
        found: dict[str, list[str]] = remote.call("glmspark.reach:hear", arguments)
        return found

    answers = in_parallel(one, asked)
    return {
        node.name: answer
        for node, answer in zip(asked, answers, strict=True)
        if not isinstance(answer, RemoteError)
    }


def _ask(kit: Any, how: dict[str, Any]) -> list[Any]:
    """The views of all nodes.

    Raises:
        PreflightError: some cannot be asked, each with its reason and its remedy.
    """
    from glmspark.doctor import asker, look_at_all, remote_of
    from glmspark.paths import kit_paths

    paths = kit_paths(kit)
    for node in kit.nodes:
        if node.ssh != "local":
            first_contact(remote_of(kit, node, paths), trust=how["trust_hosts"])
    views, errors = look_at_all(kit, asker(kit, paths), ())
    if errors:
        lines = [f"[{e.node}] {e}\n         mend: {e.hint}" for e in errors]
        raise PreflightError(
            "not every node can be asked\n       " + "\n       ".join(lines),
            hint=errors[0].hint,
        )
    return views
