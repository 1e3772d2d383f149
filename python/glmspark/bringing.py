"""Bring the engine's closure to the workers, all at once, and keep it there."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark.closures import (
    Progress,
    Way,
    copy_argv,
    require_closure,
    show,
    sign_argv,
    ssh_config,
    way_to,
)
from glmspark.console import Narrator
from glmspark.doctor import folders_of, remote_of
from glmspark.errors import CommandError, ConfigError, IntegrityError
from glmspark.hostfacts import find_tools
from glmspark.hostkeys import known_name
from glmspark.images import wanted_image
from glmspark.nixside import FEATURES, NOW, beside, keep
from glmspark.nixside import run as run_nix
from glmspark.paths import KitPaths
from glmspark.reach import tcp_way
from glmspark.remote import Remote, control_folder, in_parallel
from glmspark.remoteerrors import RemoteError
from glmspark.schema import Kit, Node
from glmspark.views import ANYTHING, NodeView, Wanted

SIGN_S = 600.0
TICK_S = 0.2


def find_nix() -> str:
    """This machine's nix program.

    Raises:
        ConfigError: there is none.
    """
    found = find_tools(os.environ).get("nix", "")
    if not found:
        raise ConfigError(
            "runtime is nix, and there is no nix program on this machine",
            hint="install Nix, or set runtime to oci",
        )
    return found


def kit_key(paths: KitPaths) -> tuple[Path, str]:
    """The kit's signing key: its file, made on first use, and its public part.

    Raises:
        CommandError: Nix cannot make or read it.
    """
    nix, file = find_nix(), paths.state / "nix-signing-key"
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"glmspark-{paths.state.name}-1"
        argv = ["key", "generate-secret", "--key-name", name]
        made = _nix([nix, *FEATURES, *argv])
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as out:
            out.write(made)
    argv = [nix, *FEATURES, "key", "convert-secret-to-public"]
    return file, _nix(argv, file.read_text()).strip()


def wanted_of(kit: Kit, paths: KitPaths, program: Sequence[str]) -> Wanted:
    """The engine that a start of ``kit`` would bring to its nodes.

    Raises:
        ConfigError: runtime is nix and there is no Nix here, or no closure; or it is
            oci and the kit names no image that can be read.
        IntegrityError: the archive is not the image that the kit names.
    """
    if image := wanted_image(kit):
        return Wanted(image=image, tool=kit.image.tool)
    closure = require_closure(kit, program)
    if not closure:
        return ANYTHING
    away = any(node.ssh != "local" for node in kit.nodes)
    return Wanted(closure, kit_key(paths)[1] if away else "")


def _nix(argv: Sequence[str], stdin: str = "") -> str:
    """What a Nix command prints.

    Raises:
        CommandError: it failed; its last words are in the message.
    """
    done = subprocess.run(
        argv, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise CommandError(f"{' '.join([argv[0], *argv[3:6]])} said: {said}")
    return done.stdout


def end_group(process: subprocess.Popen[Any] | None) -> None:
    """End a process that leads its group now, with the ssh that it runs."""
    if process is not None and process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def how_it_failed(node: Node, process: subprocess.Popen[Any] | None, words: str) -> str:
    """How sending to ``node`` went wrong, with its last words; "" if nothing did."""
    assert process is not None  # noqa: S101 - begun
    if process.returncode == 0:
        return ""
    return f"{node.name}: exit status {process.returncode}: {words}"


@dataclass
class Transfer:
    """One copy: where to, by which way, and how it goes."""

    node: Node
    remote: Remote
    way: Way
    argv: list[str]
    env: Mapping[str, str]
    over: str
    progress: Progress = field(default_factory=Progress)
    process: subprocess.Popen[str] | None = None

    def begin(self) -> threading.Thread:
        """Start it; the thread ends with the copy."""
        self.process = subprocess.Popen(
            self.argv,
            env=dict(self.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        thread = threading.Thread(target=self._follow, daemon=True)
        thread.start()
        return thread

    def _follow(self) -> None:
        assert self.process is not None and self.process.stderr is not None  # noqa: S101 - begun
        for line in self.process.stderr:
            self.progress.feed(line)
        self.process.wait()

    def end(self) -> None:
        """End it now, with the ssh that it runs."""
        end_group(self.process)

    def failure(self) -> str:
        """What went wrong; "" if nothing did."""
        words = "; ".join(self.progress.errors[-2:]) or "it said nothing"
        return how_it_failed(self.node, self.process, words)


def route(node: Node, remote: Remote) -> tuple[dict[str, str], str]:
    """The ssh options that lead over the cable where sshd answers there, in words too.

    The host stays the one whose key was kept: the key is looked up by its known name.
    """
    resolved = remote.resolved()
    port = int((resolved.get("port") or ["22"])[0])
    host = (resolved.get("hostname") or [remote.target])[0]
    detours = {"proxyjump", "proxycommand"} & set(resolved)
    if host == node.fabric or detours or tcp_way(node.fabric, "", port) != "open":
        return {}, host
    alias = known_name(resolved, remote.target)
    return {"HostName": node.fabric, "HostKeyAlias": alias}, node.fabric


class Bringer:
    """Copies one closure to the workers that lack it.

    ``kept`` names further closures that the workers must not collect.
    """

    def __init__(
        self,
        kit: Kit,
        paths: KitPaths,
        closure: str,
        teller: Narrator,
        kept: Mapping[str, str] | None = None,
    ) -> None:
        self.kit = kit
        self.paths = paths
        self.closure = closure
        self.teller = teller
        self.nix = find_nix()
        self.kept = {NOW: closure, **(kept or {})}

    def bring(self, views: Sequence[NodeView]) -> None:
        """Copy what is missing, then see that every worker has it and keeps it.

        Raises:
            CommandError: a copy failed; names each node with Nix's words.
            IntegrityError: a copy ended well, and the path is not valid there.
        """
        stores = {view.name: view.store for view in views}
        lacking = []
        for node in self.kit.nodes:
            store = stores.get(node.name)
            if node.ssh == "local" or store is None:
                continue
            if (way := way_to(store)) is Way.THERE:
                self.teller.say(f"{node.name}: has the engine, nothing sent")
            else:
                lacking.append(self._transfer(node, way, store.nix))
        if any(one.way is Way.SIGNED for one in lacking):
            self._sign()
        self._run(lacking)
        self._settle({name: one.nix for name, one in stores.items() if one})

    def _transfer(self, node: Node, way: Way, nix: str) -> Transfer:
        remote = remote_of(self.kit, node, self.paths)
        options, over = route(node, remote)
        text = ssh_config(remote.known_hosts, remote.config, str(Path.home()), options)
        file = control_folder(os.environ) / f"{remote.socket.name}.conf"
        file.write_text(text)
        daemon = beside(nix, "nix-daemon")
        argv = copy_argv(self.nix, node.ssh, daemon, self.closure, way)
        env = {**os.environ, "NIX_SSHOPTS": f"-F {file}"}
        return Transfer(node, remote, way, argv, env, over)

    def _sign(self) -> None:
        file, _ = kit_key(self.paths)
        self.teller.busy("sign the engine's closure with the kit's key")
        code, _, error = run_nix(sign_argv(self.nix, str(file), self.closure), SIGN_S)
        if code:
            raise CommandError(
                f"cannot sign {self.closure}: {error.strip()[-300:]}",
                hint=f"nix store sign -r -k {file} {self.closure}",
            )

    def _run(self, transfers: Sequence[Transfer]) -> None:
        began_s = time.monotonic()
        threads = [one.begin() for one in transfers]
        try:
            while any(thread.is_alive() for thread in threads):
                self.teller.busy(show((t.node.name, t.progress) for t in transfers))
                time.sleep(TICK_S)
        finally:
            for one in transfers:
                one.end()
        wrong = [text for one in transfers if (text := one.failure())]
        if wrong:
            text = "; ".join(wrong)
            hint = "nothing was started; glmspark doctor looks at every node"
            if (
                "lacks a signature" in text
            ):  # nix.conf names the key, its daemon not yet
                hint = "there: sudo systemctl restart nix-daemon, then start again"
            raise CommandError(f"the engine could not be brought: {text}", hint=hint)
        passed_s = max(time.monotonic() - began_s, 1e-3)
        for one in transfers:
            sent = one.progress.bytes_done / 1e6
            self.teller.say(
                f"{one.node.name}: engine brought over {one.over} ({one.way}), "
                f"{sent:.0f} MB, {sent / passed_s:.0f} MB/s"
            )

    def _settle(self, programs: Mapping[str, str]) -> None:
        """See on each worker that the closure is whole, and root it there."""
        nodes = [node for node in self.kit.nodes if node.ssh != "local"]
        here = keep(self.nix, self.kept, str(self.paths.state / "closures"))
        if here:
            raise IntegrityError(f"the engine is not whole here: {here}")

        def one(node: Node) -> str:
            arguments = {
                "kit": self.kit.name,
                "folders": folders_of(self.kit),
                "nix": programs[node.name],
                "closures": self.kept,
            }
            remote = remote_of(self.kit, node, self.paths)
            return str(remote.call("glmspark.nodeside:keep_closure", arguments, 60))

        answers = in_parallel(one, nodes)
        wrong = [f"{n.name}: {a}" for n, a in zip(nodes, answers, strict=True) if a]
        if any(isinstance(one, RemoteError) for one in answers):
            raise CommandError("the engine cannot be kept: " + "; ".join(wrong))
        if wrong:
            raise IntegrityError(
                f"{self.closure} is not whole on " + "; ".join(wrong),
                hint="nix-store --verify --repair there, then start again",
            )
