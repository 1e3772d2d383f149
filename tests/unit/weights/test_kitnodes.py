"""Where share sends to: the nodes of the kit, over the links that join them to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from glmspark.errors import ConfigError, PreflightError
from glmspark.fabrictypes import Address, FabricFacts, Netdev
from glmspark.paths import kit_paths
from glmspark.remoteerrors import RemoteError
from glmspark.schema import Kit
from glmspark.schema import Node as KitNode
from glmspark.settings import load_settings
from glmspark.weights import kitnodes
from glmspark.weights.remote import pull_command

from tests.unit.weights.conftest import Kit as Command


def device(name: str, address: str, pci: str, *, up: bool = True) -> Netdev:
    held = (Address(address, 24),) if address else ()
    state = "up" if up else "down"
    return Netdev(name, 1, 9000, state, True, addresses=held, driver="m", pci=pci)


def facts(number: int, *, second: str = "192.168.101.{}", up: bool = True):
    """A GB10's socket: two functions, each with a link of its own."""
    twin = second.format(number) if second else ""
    return FabricFacts(
        (
            device("lan0", f"10.0.0.{number}", "0007:03:00.0"),
            device("cx0", f"192.168.100.{number}", "0000:01:00.0"),
            device("cx1", twin, "0002:01:00.0", up=up),
        )
    )


@pytest.fixture
def two_nodes(tmp_path: Path) -> Kit:
    file = tmp_path / "kit.toml"
    nodes = "".join(
        f'[[nodes]]\nname = "spark-{n}"\nssh = "{ssh}"\nfabric = "192.168.100.{n}"\n'
        for n, ssh in ((1, "local"), (2, "me@spark-2"))
    )
    text = 'name = "t"\ntopology = "tp2"\n[weights]\nstore = "~/w"\n'
    file.write_text(text + nodes)
    return load_settings(str(file), ()).kit


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (facts(2), ("192.168.100.2", "192.168.101.2")),
        (facts(2, up=False), ("192.168.100.2",)),
        (facts(2, second=""), ("192.168.100.2",)),
        (facts(2, second="172.16.0.{}"), ("192.168.100.2",)),  # no link of the head's
        (FabricFacts(), ("192.168.100.2",)),
    ],
)
@pytest.mark.cases(72)
def test_both_links_of_a_socket_carry_and_no_other(
    node: FabricFacts, expected: tuple[str, ...]
) -> None:
    assert kitnodes.links(facts(1), node, "192.168.100.2") == expected


def test_the_kits_nodes_are_reached_as_by_every_other_command(two_nodes: Kit) -> None:
    seen = {"spark-1": facts(1), "spark-2": facts(2)}
    (node,) = kitnodes.nodes_of(
        two_nodes, (), kit_paths(two_nodes), lambda n: seen[n.name]
    )
    assert node.fabric == ("192.168.100.2", "192.168.101.2")
    argv = pull_command(node)
    assert argv[0] == "ssh"
    assert "-oStrictHostKeyChecking=yes" in argv
    assert "-oBatchMode=yes" in argv
    assert argv[-3:] == ["--", "me@spark-2", "glmspark weights pull --store '~/w'"]


@pytest.mark.parametrize("name", ["spark-1", "spark-9"])
def test_a_name_that_cannot_receive_is_refused(two_nodes: Kit, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is no node of kit t .*spark-2"):
        kitnodes.receivers(two_nodes, (name,))


def test_a_node_that_cannot_be_asked_is_named(two_nodes: Kit) -> None:
    def look(node: KitNode) -> FabricFacts:
        if node.name == "spark-2":
            raise RemoteError("no answer", kind="silent", node=node.name, hint="x")
        return facts(1)

    with pytest.raises(PreflightError, match="no answer") as caught:
        kitnodes.nodes_of(two_nodes, (), kit_paths(two_nodes), look)
    assert caught.value.node == "spark-2"


def test_the_store_is_the_kits_unless_the_user_says_otherwise(
    kit: Command, tmp_path: Path
) -> None:
    del kit.env["GLMSPARK_WEIGHTS_STORE"]
    file = tmp_path / "kit.toml"
    hint = "there is no weights store at"
    assert f"{hint} {kit.home}/.local/share/glmspark/store" in kit.run("list").err
    file.write_text(f'[weights]\nstore = "{tmp_path / "kits"}"\n')
    assert f"{hint} {tmp_path / 'kits'}" in kit.run("list").err  # ./kit.toml
    env = {"GLMSPARK_WEIGHTS_STORE": str(tmp_path / "env")}
    assert f"{hint} {tmp_path / 'env'}" in kit.run("list", **env).err
    ran = kit.run("list", "--store", tmp_path / "mine", **env)
    assert f"{hint} {tmp_path / 'mine'}" in ran.err
    file.write_text("[weights]\nstore = 3\n")
    ran = kit.run("list", "--kit", file)
    assert (ran.code, "weights.store is 3" in ran.err) == (3, True)
    file.write_text("[weights\n")
    assert kit.run("list").code == 3
