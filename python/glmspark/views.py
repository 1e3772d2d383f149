"""What the head knows of one node after asking it; typed, from the node's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from glmspark.fabrictypes import FabricFacts
from glmspark.facts import Facts, Listener, Stray
from glmspark.hostfacts import HostFacts
from glmspark.imageside import ImageFacts, ImageId
from glmspark.nixside import StoreFacts
from glmspark.reach import PathFacts


def facts_from_json(data: Mapping[str, Any]) -> Facts:
    """The facts that ``Facts.to_json`` gave."""
    parts = {
        "listeners": tuple(Listener(**one) for one in data["listeners"]),
        "strays": tuple(Stray(**one) for one in data["strays"]),
        "gpus": tuple(data["gpus"]),
        "unread": tuple(data["unread"]),
    }
    return Facts(**{**data, **parts})


def path_from_json(data: Mapping[str, Any]) -> PathFacts:
    """The path that ``reach.look`` gave; JSON made text of the port numbers."""
    ports = {int(port): word for port, word in data["ports"].items()}
    return PathFacts(**{**data, "ports": ports})


@dataclass(frozen=True)
class Wanted:
    """The engine that a start would bring: a store path and its key, or an image."""

    closure: str = ""
    key: str = ""
    image: ImageId | None = None
    tool: str = "auto"

    def to_json(self) -> dict[str, Any]:
        """The argument ``wanted`` of ``nodeside.look``."""
        return asdict(self)


ANYTHING = Wanted()


@dataclass(frozen=True)
class NodeView:
    """One node: its place in the kit and everything that it answered.

    ``skew_s`` bounds how far its clock is ahead of the head's: at least the first, at
    most the second number of seconds.
    """

    name: str
    rank: int
    address: str
    facts: Facts
    fabric: FabricFacts = field(default_factory=FabricFacts)
    host: HostFacts = field(default_factory=HostFacts)
    paths: tuple[PathFacts, ...] = ()
    skew_s: tuple[float, float] = (0.0, 0.0)
    store: StoreFacts | None = None
    image: ImageFacts | None = None

    @staticmethod
    def from_answer(
        place: tuple[str, int, str], answer: Mapping[str, Any], asked: tuple[float, ...]
    ) -> NodeView:
        """The view of a node at ``place`` (name, rank, fabric address).

        ``asked`` holds the head's time before the question and after the answer; the
        node's own two times lie between them if the clocks agree.
        """
        began, ended = answer["clock"]
        return NodeView(
            *place,
            facts=facts_from_json(answer["facts"]),
            fabric=FabricFacts.from_json(answer["fabric"]),
            host=HostFacts.from_json(answer["host"]),
            paths=tuple(path_from_json(one) for one in answer["paths"]),
            skew_s=(ended - asked[1], began - asked[0]),
            store=StoreFacts.from_json(answer.get("store")),
            image=ImageFacts.from_json(answer.get("image")),
        )
