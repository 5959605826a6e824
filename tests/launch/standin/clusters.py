"""A cluster: the API, its objects, its nodes and its controllers, for as long as a test needs it."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kubernetes import client as k8s  # type: ignore[import-untyped]

from tests.launch.standin.access import Account, Accounts, Call
from tests.launch.standin.answers import expired, status
from tests.launch.standin.containers import Host
from tests.launch.standin.deletion import Garbage
from tests.launch.standin.faults import Faults
from tests.launch.standin.jobsets import BatchJobs, JobSets
from tests.launch.standin.kubelet import Kubelet
from tests.launch.standin.kueue import Kueue
from tests.launch.standin.loop import Loop
from tests.launch.standin.nodes import Nodes
from tests.launch.standin.plans import Plan, Plans
from tests.launch.standin.pytorchjobs import TrainingOperator
from tests.launch.standin.resources import BY_KIND, BY_PLURAL, RESOURCES, Object, Resource
from tests.launch.standin.runtimes import STOCK, applied
from tests.launch.standin.server import Server, Service
from tests.launch.standin.store import Store
from tests.launch.standin.trainjobs import Trainer
from tests.launch.standin.verbs import Verbs

ADMIN = "admin"
"""The token of who may do everything."""


class Cluster:
    """A running cluster.

    Attributes:
        url: Address of its API.
        folder: What the pods' claims are: a folder of this machine.
        store: The objects.
        verbs: The API without HTTP, and its switches: ``webhook``, ``quotas``, ``terminating``; ``schemas``
            for another release of an operator, such as ``{"trainjob": "trainjob-2.2"}``.
        faults: The script of faults.
        operator: The training operator.
        nodes: The nodes, and what becomes of pods.
        trainer: Kubeflow Trainer v2, where there are operators.
        kueue: Kueue, if there is one.
        calls: Every call so far, in the order in which they were answered.
    """

    def __init__(
        self,
        folder: Path,
        server: Server,
        service: Service,
        operator: TrainingOperator,
        nodes: Nodes,
        background: tuple[Loop, Garbage],
    ) -> None:
        self.folder, self.url, self._service = folder, server.url, service
        self._loop, self._garbage = background
        self.store, self.verbs, self.faults = service.verbs.store, service.verbs, service.faults
        self.operator, self.nodes = operator, nodes
        self.trainer: Trainer | None = None
        self.kueue: Kueue | None = None

    @property
    def calls(self) -> list[Call]:
        """Every call so far, in the order in which they were answered."""
        return self._service.calls

    def api_client(self, token: str = ADMIN, retries: int | bool = False) -> k8s.ApiClient:
        """Return a client of an account; of one that may do everything, if no token is given.

        Args:
            token: What :meth:`account` gave.
            retries: How often the client itself makes a call again; not at all by default.
        """
        settings = k8s.Configuration()
        settings.host, settings.retries = self.url, retries
        settings.api_key = {"authorization": f"Bearer {token}"}
        return k8s.ApiClient(settings)

    def reject_anonymous(self) -> None:
        """Answer requests without a token with 401, as an API server with ``--anonymous-auth=false``."""
        self._service.accounts.anonymous = False

    def account(self, user: str, rules: Sequence[Object] | None, namespace: str = "") -> str:
        """Let somebody in who may do what a Role's rules say; return the token.

        Args:
            user: Such as ``system:serviceaccount:team:launcher``.
            rules: Those of a Role; ``None``: may do everything.
            namespace: Where they hold; empty: everywhere.
        """
        return self._service.accounts.add(Account(user, rules, namespace))

    def revoke(self, token: str) -> None:
        """Let an account in no more: its calls are answered with 401."""
        self._service.accounts.by_token.pop(token, None)

    def kubeconfig(self, path: Path, token: str = ADMIN, namespace: str = "team") -> Path:
        """Write a configuration file for clients."""
        user = {"name": "user", "user": {"token": token}}
        context = {"name": "here", "context": {"cluster": "here", "user": "user", "namespace": namespace}}
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [user],
            "contexts": [context],
        }
        path.write_text(json.dumps(body))
        return path

    def objects(self, kind: str, namespace: str = "") -> list[Object]:
        """Return the objects of a kind, named as in ``kind`` or in the plural."""
        return self.store.list(_resource(kind), namespace)

    def find(self, kind: str, name: str, namespace: str = "team") -> Object | None:
        """Return an object, or nothing."""
        resource = _resource(kind)
        return self.store.find(resource, namespace if resource.namespaced else "", name)

    def put(self, body: Object, namespace: str = "team") -> Object:
        """Store an object as it is, past all checks, or in the place of one of that name."""
        resource = BY_KIND[body["kind"]]
        where = body["metadata"].get("namespace", namespace) if resource.namespaced else ""
        found = self.store.find(resource, where, body["metadata"]["name"])
        if found is None:
            return self.store.add(resource, where, body)
        return self.store.put(
            resource, {**found, **body, "metadata": {**found["metadata"], **body["metadata"]}}
        )

    def apply_runtime(self) -> None:
        """Apply ``deploy/trainer/runtime.yaml``, as an administrator does once."""
        self.put(applied())

    def edit(self, kind: str, name: str, edit: Callable[[Object], None], namespace: str = "team") -> Object:
        """Change a copy of an object and store it, past all checks."""
        resource = _resource(kind)
        return self.store.edit(resource, namespace if resource.namespaced else "", name, edit)

    def condition(
        self,
        name: str,
        kind: str,
        value: str = "True",
        reason: str = "",
        message: str = "",
        of: str = "PyTorchJob",
        namespace: str = "team",
    ) -> Object:
        """Set a condition of a job by hand; for tests that have no operator running."""
        entry = {"type": kind, "status": value, "reason": reason or f"{of}{kind}", "message": message}

        def note(body: Object) -> None:
            told = body.setdefault("status", {}).setdefault("conditions", [])
            told[:] = [*(other for other in told if other["type"] != kind), entry]

        return self.edit(of, name, note, namespace)

    def wait(self, holds: Callable[[], object], within_s: float = 120) -> None:
        """Wait until something holds.

        Raises:
            AssertionError: It did not.
        """
        assert self.store.wait(holds, within_s), f"did not come to hold within {within_s} s"

    def settle(self) -> None:
        """Wait until the controllers have nothing more to do at once."""
        while True:
            number = self.store.number
            self._garbage.flush()
            for _ in range(3):
                self._loop.now(lambda: None)
            if self.store.number == number:
                return

    def close_watches(self) -> None:
        """End every watch in good order, as the API does now and then."""
        for watch in self.store.watches():
            watch.end()

    def expire(self, *, watches: bool = True) -> None:
        """Forget the past: older versions are refused with 410, running watches get it as an error."""
        self.store.compact()
        refusal = expired(self.store.number - 1, self.store.number)
        error = status(refusal.code, refusal.reason, refusal.message)
        for watch in self.store.watches() if watches else set():
            watch.say("ERROR", error)
            watch.end()

    def bookmark(self) -> None:
        """Send a bookmark to everybody who looks on."""
        for watch in self.store.watches():
            watch.bookmark()


def _resource(kind: str) -> Resource:
    return BY_KIND.get(kind) or BY_PLURAL[kind]


@contextmanager
def cluster(
    folder: Path,
    *,
    processes: bool = True,
    operator: bool = True,
    kueue: bool = False,
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
    nodes: int = 2,
    gpus: int = 0,
    namespaces: Sequence[str] = ("team",),
    without: Sequence[str] = (),
    backoff_s: float = 10,
    seed: int = 0,
) -> Iterator[Cluster]:
    """Run a cluster.

    Args:
        folder: What every claim of a pod is, under whatever path it is mounted.
        processes: Whether the commands of pods run; otherwise pods run until something ends them.
        operator: Whether there is a training operator; otherwise jobs stay as they were created.
        kueue: Whether there is Kueue: ``kueue`` of the cluster.
        python: What stands for ``python`` and ``torchrun`` in a container; by default this interpreter.
        env: Environment of every container, below its own.
        nodes: How many nodes there are, named ``node-0`` and so on.
        gpus: GPUs of each.
        namespaces: Which there are.
        without: Plural names of kinds that are not installed.
        backoff_s: Seconds before a container is started again the second time.
        seed: Of everything that happens by chance.
    """
    folder.mkdir(parents=True, exist_ok=True)
    host = Host(folder.resolve(), python or Path(sys.executable), env or {})
    absent = {*without} | {entry.plural for entry in RESOURCES if "kueue" in entry.group and not kueue}
    known = tuple(entry for entry in RESOURCES if entry.plural not in absent)
    with ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        verbs = Verbs(Store())
        machines = _machines(verbs.store, loop, host, Plan(process=processes), backoff_s)
        stack.callback(loop.now, machines.close)
        faults = Faults(seed, verbs.store.cut_watches)
        service = Service(verbs, Accounts({ADMIN: Account("admin")}), faults, known, machines.log)
        trains, garbage = TrainingOperator(verbs, loop, seed), Garbage(verbs.store)
        stack.callback(garbage.close)
        running = Cluster(
            host.folder, stack.enter_context(Server(service)), service, trains, machines, (loop, garbage)
        )
        _add_controllers(running, loop, operator=operator, kueue=kueue)
        _furnish(running, namespaces, nodes, gpus)
        try:
            yield running
        except BaseException as error:
            for problem in (*service.problems, *loop.problems):
                error.add_note(problem)
            raise
    problems = [*service.problems, *loop.problems]
    assert not problems, "\n".join(problems)


def _machines(store: Store, loop: Loop, host: Host, default: Plan, backoff_s: float) -> Nodes:
    return Nodes(store, loop, Kubelet(store, loop, host, Plans(default), backoff_s))


def _add_controllers(running: Cluster, loop: Loop, *, operator: bool, kueue: bool) -> None:
    """Add the controllers beside the training operator, with their webhooks."""
    if operator:
        BatchJobs(running.verbs, loop)
        JobSets(running.store, loop)
        running.trainer = Trainer(running.store, loop)
        running.verbs.before.append(running.trainer.require_runtime)
    else:
        running.operator.absent()
    if kueue:
        running.kueue = Kueue(running.store, loop)
        running.verbs.before.append(running.kueue.hold)


def _furnish(running: Cluster, namespaces: Sequence[str], nodes: int, gpus: int) -> None:
    """Add what a cluster has before anybody uses it."""
    running.put(STOCK)
    for name in namespaces:
        running.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}})
    for index in range(nodes):
        running.nodes.add(f"node-{index}", gpus=gpus)
