"""Containers as processes of this machine.

A container's process gets the environment of its pod, with addresses of the cluster's network turned into
ports of the loopback interface, and the paths of its volumes turned into folders.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.launch.standin.logs import Log
from tests.launch.standin.loop import Loop
from tests.launch.standin.replicas import ROOTS
from tests.launch.standin.resources import BY_KIND, Object
from tests.launch.standin.store import Store

MARK = "STANDIN_POD"
"""Variable by which the processes of a pod are found again, whatever sessions they made of their own."""

_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")


class Misconfigured(Exception):
    """A container cannot be made as it is asked for."""


@dataclass
class Host:
    """What stands for the machines of a cluster.

    Attributes:
        folder: What every claim is.
        python: The interpreter that stands for ``python`` in a container.
        env: Environment of every container, below its own.
        ports: Ports of this machine, by name of a pod in the cluster's network.
        alive: Its processes.
    """

    folder: Path
    python: Path
    env: Mapping[str, str] = field(default_factory=dict)
    ports: dict[tuple[str, str], int] = field(default_factory=dict)
    alive: "set[Process]" = field(default_factory=set)

    def port(self, namespace: str, name: str) -> int:
        """Return the port that stands for a pod's."""
        if (namespace, name) not in self.ports:
            with socket.socket() as found:
                found.bind(("127.0.0.1", 0))
                self.ports[namespace, name] = int(found.getsockname()[1])
        return self.ports[namespace, name]


def variables(store: Store, pod: Object, container: Object) -> dict[str, str]:
    """Return a container's environment as its pod has it.

    Raises:
        Misconfigured: It names something that is not there.
    """
    found: dict[str, str] = {}
    for entry in container.get("env") or []:
        value = entry.get("value")
        if value is None:
            value = _looked_up(store, pod, entry.get("valueFrom") or {})
        found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda hit: found.get(hit[1], hit[0]), value)
    return found


def _looked_up(store: Store, pod: Object, source: Object) -> str:
    space = pod["metadata"]["namespace"]
    for key, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
        if wanted := source.get(key):
            body = store.find(BY_KIND[kind], space, wanted["name"])
            if body is None and not wanted.get("optional"):
                raise Misconfigured(f'{kind.lower()} "{wanted["name"]}" not found')
            text = {**((body or {}).get("data") or {}), **((body or {}).get("stringData") or {})}.get(
                wanted["key"]
            )
            if text is None and not wanted.get("optional"):
                raise Misconfigured(f"couldn't find key {wanted['key']} in {kind} {space}/{wanted['name']}")
            return text or ""
    path = (source.get("fieldRef") or {}).get("fieldPath", "")
    if path.startswith(("metadata.annotations", "metadata.labels")):
        group, name = path.split("[")[0].split(".")[1], path.split("'")[1]
        return str((pod["metadata"].get(group) or {}).get(name, ""))
    group, _, name = path.partition(".")
    if name in ("podIP", "hostIP"):
        return "127.0.0.1"
    return str(pod.get(group, {}).get(name, ""))


def on_loopback(values: Mapping[str, str], host: Host, pod: Object) -> dict[str, str]:
    """Return an environment in which the pods of a job find one another on this machine."""
    space, name, found = pod["metadata"]["namespace"], pod["metadata"]["name"], dict(values)
    for prefix in ("", "PET_"):
        if master := found.get(f"{prefix}MASTER_ADDR"):
            found[f"{prefix}MASTER_ADDR"] = "127.0.0.1"
            found[f"{prefix}MASTER_PORT"] = str(host.port(space, master.split(".")[0]))
    if endpoint := found.get("PET_RDZV_ENDPOINT"):
        master = endpoint.partition(":")[0].split(".")[0]
        found["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{host.port(space, master)}"
        # On one machine every agent could be the host of the rendezvous; in a cluster it is that pod alone.
        told = [found["PET_RDZV_CONF"]] if found.get("PET_RDZV_CONF") else []
        found["PET_RDZV_CONF"] = ",".join([*told, f"is_host={str(master == name).lower()}"])
    return found | {"PET_LOCAL_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "HOSTNAME": name}


def paths(host: Host, pod: Object, container: Object) -> list[tuple[str, str]]:
    """Return which paths inside a container are which folders, longest first.

    Where the interpreter lies below an empty folder of the pod, such as /tmp, that folder is left as it is.
    """
    volumes = {entry["name"]: entry for entry in pod["spec"].get("volumes") or []}
    found = []
    for mount in container.get("volumeMounts") or []:
        volume, inside = volumes.get(mount["name"], {}), mount["mountPath"].rstrip("/")
        if "persistentVolumeClaim" in volume:
            found.append((inside, str(host.folder / mount.get("subPath", ""))))
        elif "emptyDir" in volume and not (inside.startswith("/dev/") or host.python.is_relative_to(inside)):
            own = host.folder / ".pods" / pod["metadata"]["uid"] / mount["name"]
            own.mkdir(parents=True, exist_ok=True)
            found.append((inside, str(own)))
    return sorted(found, key=lambda pair: -len(pair[0]))


def moved(text: str, pairs: list[tuple[str, str]]) -> str:
    """Put folders in the place of paths, each once: one mount may lie below another."""
    if not pairs:
        return text
    places = dict(reversed(pairs))
    known = "|".join(re.escape(inside) for inside, _ in pairs)
    return re.sub(rf"(?<![\w./-])({known})(?=[/\s'\",:;]|$)", lambda hit: places[hit[1]], text)


def is_root_unasked(spec: Object) -> bool:
    """Tell whether the first container is root by its image, in a pod that is not to be root."""
    (first, *_) = spec.get("initContainers") or [{}]
    told = {**(spec.get("securityContext") or {}), **(first.get("securityContext") or {})}
    return first.get("image") == ROOTS and told.get("runAsNonRoot") is True and not told.get("runAsUser")


def command(host: Host, container: Object, values: Mapping[str, str]) -> list[str]:
    """Return what to run: the container's command, with this machine's interpreter.

    Raises:
        Misconfigured: It has none; there are no images here that would have one.
    """
    parts = [*(container.get("command") or []), *(container.get("args") or [])]
    if not container.get("command"):
        raise Misconfigured("failed to generate container spec: no command specified")
    parts = [re.sub(r"\$\((\w+)\)", lambda hit: values.get(hit[1], hit[0]), part) for part in parts]
    first = Path(parts[0]).name
    if first in ("python", "python3"):
        return [str(host.python), *parts[1:]]
    if first == "torchrun":
        return [str(host.python), "-m", "torch.distributed.run", *parts[1:]]
    return parts


class Process:
    """A container that runs as a process of this machine.

    Args:
        loop: Where its end and its output are seen.
        host: What stands for its machine; the interpreter's folder comes first in its path.
        arguments: What to run.
        env: Its whole environment.
        mark: The pod's uid.
        log: Where its output goes.
        ended: Called in the loop with its exit code, once it and all that it started are gone.
    """

    def __init__(
        self,
        loop: Loop,
        host: Host,
        arguments: list[str],
        env: Mapping[str, str],
        mark: str,
        log: Log,
        ended: Callable[[int], None],
    ) -> None:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        kept["PATH"] = f"{host.python.parent}:{kept.get('PATH', '')}"
        self._loop, self._mark, self._log, self._ended = loop, mark, log, ended
        self._popen = subprocess.Popen(
            arguments,
            env=kept | dict(env) | {MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._popen.stdout is not None
        self._output = self._popen.stdout.fileno()
        os.set_blocking(self._output, False)
        self._life = os.pidfd_open(self._popen.pid)
        self._reads, self._host = True, host
        host.alive.add(self)
        loop.read(self._output, self._read)
        loop.read(self._life, self._end)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def signal(self, number: int) -> None:
        """Send its first process a signal, as a node does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._popen.pid, number)

    def kill(self) -> None:
        """Kill it with all that it started."""
        self.signal(signal.SIGKILL)
        kill_marked(self._mark)

    def bury(self) -> None:
        """Kill it and wait for its end, which nobody is told of."""
        self._ended = lambda _code: None
        self.kill()
        self._end()

    def _read(self) -> None:
        if not self._reads:
            return  # it has ended meanwhile
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return
        if data:
            self._log.write(data)
        else:
            self._leave_output()

    def _leave_output(self) -> None:
        if self._reads:
            self._reads = False
            self._loop.forget(self._output)

    def _end(self) -> None:
        """Note the end. What it had started ends with it, as everything in a container does."""
        code = self._popen.wait()
        self._loop.forget(self._life)
        os.close(self._life)
        kill_marked(self._mark)
        while self._reads:
            try:
                data = os.read(self._output, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                break
            self._log.write(data)
        self._leave_output()
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        self._log.close()
        self._host.alive.discard(self)
        self._ended(code if code >= 0 else 128 - code)


def kill_marked(mark: str) -> None:
    """Kill every process of a pod."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
