"""A node's container engine: which image it has by content, and a rank in it.

Standard library alone: it is sent to the node. Nothing is ever pulled.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ASK_S = 30.0
VERBS = "/dev/infiniband"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
KIT_LABEL, BOOT_LABEL = "glmspark.kit", "glmspark.boot"
# Room for NCCL's and vLLM's shared memory; a container's default is 64 MiB.
SHM_SIZE = "16g"


@dataclass(frozen=True)
class ImageId:
    """An image by its content: digest of its config, diff ids of its layers.

    Stores differ in what they call an image's id (Docker's containerd store names the
    manifest), and tags move; layers and config are the image itself.
    """

    config: str
    layers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ImageId:
        """The identity that ``asdict`` made plain data of."""
        return ImageId(data["config"], tuple(data["layers"]), dict(data["labels"]))


@dataclass(frozen=True)
class ImageFacts:
    """A node's container engine and the image that was asked for.

    ``found`` is what this store calls the image, "" where it lacks it. ``cdi`` says
    whether a device specification for NVIDIA is there. ``why`` says what could not be
    looked at.
    """

    tool: str = ""
    found: str = ""
    cdi: bool = False
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> ImageFacts | None:
        """The facts that :meth:`to_json` gave; None for none."""
        return ImageFacts(**data) if data is not None else None


def digest(text: str) -> str:
    """An id with its algorithm; podman prints the bare digits."""
    return text if ":" in text else f"sha256:{text}"


def is_same(inspected: Mapping[str, Any], wanted: ImageId) -> bool:
    """Whether an inspected image is the wanted one, whatever its store calls it."""
    if digest(str(inspected.get("Id", ""))) == wanted.config:
        return True
    layers = tuple((inspected.get("RootFS") or {}).get("Layers") or ())
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    return bool(wanted.layers) and (layers, labels) == (wanted.layers, wanted.labels)


def ask(argv: Sequence[str], timeout_s: float = ASK_S) -> str:
    """What a command of the container engine prints.

    Raises:
        OSError: it cannot be run, does not end, or fails; its last words.
    """
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{argv[0]} {argv[1]}: no answer in {timeout_s:.0f} s") from error
    if done.returncode:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()
        raise OSError(f"{argv[0]} {argv[1]}: {said[-1]}")
    return done.stdout


def pick_tool(tools: Mapping[str, str], asked: str) -> str:
    """The container engine's program: the asked one, else podman, else docker."""
    names = (asked,) if asked != "auto" else ("podman", "docker")
    return next((tools[name] for name in names if name in tools), "")


def look(tool: str, wanted: ImageId) -> ImageFacts:
    """What this node has of ``wanted``; a store that cannot be read is no empty one."""
    cdi = any(
        "nvidia" in one.name for base in CDI_FOLDERS for one in Path(base).glob("*")
    )
    if not tool:
        return ImageFacts(cdi=cdi, why="neither podman nor docker is there")
    try:
        listed = ask([tool, "image", "ls", "--quiet", "--no-trunc"]).split()
        images = sorted(set(listed))
        shown = json.loads(ask([tool, "image", "inspect", *images])) if images else []
    except (OSError, ValueError) as error:
        return ImageFacts(tool, cdi=cdi, why=str(error))
    for one in shown:
        if is_same(one, wanted):
            return ImageFacts(tool, digest(str(one["Id"])), cdi)
    return ImageFacts(tool, cdi=cdi)


@dataclass(frozen=True)
class Cell:
    """What a rank's container is made of, beside the image.

    ``folder`` holds the rank's boot.json and takes its fingerprint; ``mounts`` are
    (path, writable), the same path inside. ``gpu`` and ``verbs`` say which devices it
    gets, ``cdi`` how the GPU is named.
    """

    name: str
    kit: str
    boot: str
    rank: int
    folder: str
    mounts: tuple[tuple[str, bool], ...]
    uid: int
    gid: int
    gpu: bool = False
    verbs: bool = False
    cdi: bool = True


def run_argv(tool: str, image: str, cell: Cell) -> list[str]:
    """The argv that runs a rank in ``image``, in the foreground (pure).

    The image's entry point is ``glmspark rank``. No root: the user is this one, and
    podman keeps its number inside. Host network, since NCCL and Gloo use the fabric's
    own addresses; unlimited locked memory, since RDMA registers it.
    """
    podman = Path(tool).name == "podman"
    argv = [tool, "run", "--rm", "--pull=never", f"--name={cell.name}"]
    argv += [f"--label={KIT_LABEL}={cell.kit}", f"--label={BOOT_LABEL}={cell.boot}"]
    argv += ["--network=host", f"--shm-size={SHM_SIZE}", "--ulimit=memlock=-1:-1"]
    argv += ["--ulimit=nofile=1048576:1048576", "--restart=no", "--log-driver=none"]
    argv += ["--security-opt=label=disable", "--security-opt=no-new-privileges"]
    argv += ["--cap-drop=ALL", f"--user={cell.uid}:{cell.gid}"]
    if podman and cell.uid != 0:
        argv += ["--userns=keep-id", "--group-add=keep-groups"]
    if cell.gpu:
        argv += ["--device=nvidia.com/gpu=all"] if cell.cdi else ["--gpus=all"]
    if cell.verbs:
        argv.append(f"--device={VERBS}")
    marks = {
        "GLMSPARK_BOOT": cell.boot,
        "GLMSPARK_RANK": str(cell.rank),
        "GLMSPARK_SCRATCH": f"/tmp/glmspark-r{cell.rank}",  # noqa: S108 - the container's own
    }
    argv += [f"--env={name}={value}" for name, value in marks.items()]
    for path, writable in ((cell.folder, True), *cell.mounts):
        argv.append(f"--volume={path}:{path}:{'rw' if writable else 'ro'}")
    return [*argv, image, "--boot", cell.folder, "--rank", str(cell.rank)]


def mounts_of(model: str, store: str, cache: str) -> tuple[tuple[str, bool], ...]:
    """The folders that a rank needs: its model, the weights store, its caches."""
    found = [(model, False)]
    if Path(store).is_dir():
        found.append((store, False))
    Path(cache).mkdir(mode=0o700, parents=True, exist_ok=True)
    return (*found, (cache, True))


def cell_of(rank: Mapping[str, Any], folder: str, secrets: Sequence[str]) -> Cell:
    """The container of ``rank`` (as ``remoterank.order`` has it) on this node."""
    box = rank["container"]
    mounts = mounts_of(rank["model"], box["store"], box["cache"])
    return Cell(
        name=f"glmspark-{box['kit']}-r{rank['rank']}-{rank['boot'][-6:]}",
        kit=box["kit"],
        boot=rank["boot"],
        rank=rank["rank"],
        folder=folder,
        mounts=(*mounts, *((file, False) for file in secrets)),
        uid=os.getuid(),
        gid=os.getgid(),
        gpu=box["gpu"],
        verbs=box["gpu"] and Path(VERBS).exists(),
        cdi=box["cdi"],
    )


def remove(tool: str, boots: Sequence[str]) -> int:
    """Remove the containers of ``boots``; how many could not be removed.

    Raises:
        OSError: the container engine cannot be asked.
    """
    left = 0
    for boot in boots:
        argv = [tool, "ps", "--all", "--quiet", f"--filter=label={BOOT_LABEL}={boot}"]
        for one in ask(argv).split():
            try:
                ask([tool, "rm", "--force", "--volumes", one])
            except OSError:
                left += 1
    return left
