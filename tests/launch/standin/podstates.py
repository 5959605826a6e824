"""What a node says of a pod: its phase, its conditions and the states of its containers."""

from dataclasses import dataclass, field

from tests.launch.standin.resources import Object
from tests.launch.standin.store import now

UNKNOWN_END = {
    "exitCode": 137,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
    "startedAt": None,
    "finishedAt": None,
}
"""How a container ends that never began."""


@dataclass
class Told:
    """What a node knows of one container.

    Attributes:
        name: Its name.
        image: Its image.
        state: ``waiting``, ``running`` or ``terminated``, as the API writes it.
        last: How its last start ended.
        restarts: How often it was started again.
    """

    name: str
    image: str
    state: Object = field(default_factory=dict)
    last: Object = field(default_factory=dict)
    restarts: int = 0

    @property
    def runs(self) -> bool:
        """Whether it runs."""
        return "running" in self.state

    @property
    def ended(self) -> Object | None:
        """How it ended; nothing if it has not."""
        found: Object | None = self.state.get("terminated")
        return found

    def body(self, uid: str) -> Object:
        """Write it as the API does."""
        told = {"name": self.name, "state": self.state, "lastState": self.last, "ready": self.runs}
        told |= {"restartCount": self.restarts, "image": self.image, "imageID": "", "started": self.runs}
        return told | ({"containerID": container_id(uid, self.restarts)} if self.runs or self.ended else {})


def container_id(uid: str, restarts: int) -> str:
    """Return the name that a runtime has for a start of a container."""
    return f"containerd://{uid.replace('-', '')}{restarts:032x}"


def waiting(reason: str, message: str = "") -> Object:
    """Write the state of a container that waits."""
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def status(pod: Object, phase: str, main: Told, init: Told | None, started: str) -> Object:
    """Write the status of a pod that is on a node; what others have noted of it is kept.

    Args:
        pod: The pod.
        phase: Its phase.
        main: Its container.
        init: The container that runs before, if any.
        started: When the node took it.
    """
    before, uid = pod["status"], pod["metadata"]["uid"]
    ready = "True" if phase == "Running" and main.runs else "False"
    over = phase in ("Succeeded", "Failed") or (main.ended and phase == "Running")
    done = init is None or init.ended is not None
    why = ("PodCompleted" if phase != "Failed" else "PodFailed") if over else "ContainersNotReady"
    unready = {} if ready == "True" else {"reason": why}
    if unready and not over:
        unready["message"] = f"containers with unready status: [{main.name}]"
    begun = {"status": "True"} if done else {"status": "False", "reason": "ContainersNotInitialized"}
    if over and phase == "Succeeded":
        begun["reason"] = "PodCompleted"
    shell = "True" if (main.runs or (init and init.runs)) else "False"
    wanted: dict[str, Object] = {
        "PodReadyToStartContainers": {"status": shell},
        "Initialized": begun,
        "Ready": {"status": ready, **unready},
        "ContainersReady": {"status": ready, **unready},
        "PodScheduled": {"status": "True"},
    }
    address = {"hostIP": "127.0.0.1", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    told = {**before, **address, "phase": phase, "startTime": started, "qosClass": "Burstable"}
    told["conditions"] = conditions(before, wanted)
    if init is not None:
        told["initContainerStatuses"] = [init.body(uid)]
    return told | {"containerStatuses": [main.body(uid)]}


def conditions(before: Object, wanted: dict[str, Object]) -> list[Object]:
    """Return a pod's conditions; those of others come first, and times move only with the status."""
    known = {entry["type"]: entry for entry in before.get("conditions") or []}
    found = [entry for kind, entry in known.items() if kind not in wanted]
    for kind, told in wanted.items():
        old = known.get(kind)
        since = old["lastTransitionTime"] if old and old["status"] == told["status"] else now()
        found.append({"type": kind, **told, "lastProbeTime": None, "lastTransitionTime": since})
    return found
