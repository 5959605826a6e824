"""What a node does with a pod that it was given: start its container, watch it, start it again, end it."""

import re
import signal

from tests.launch.standin import containers, podstates
from tests.launch.standin.deletion import delete
from tests.launch.standin.events import Recorder
from tests.launch.standin.loop import Loop
from tests.launch.standin.plans import Plans
from tests.launch.standin.podstates import Told, waiting
from tests.launch.standin.resources import POD, Object
from tests.launch.standin.runs import Run
from tests.launch.standin.store import Store, now


class Kubelet:
    """Runs the pods of every node, in the cluster's one thread.

    Args:
        store: The objects.
        loop: The cluster's thread.
        host: What stands for the machines.
        plans: What becomes of pods.
        backoff_s: Seconds before a container that ends again and again is started once more; doubles.

    Attributes:
        runs: The pods on nodes, by uid.
        lost: Nodes that nothing is heard of.
    """

    def __init__(
        self, store: Store, loop: Loop, host: containers.Host, plans: Plans, backoff_s: float
    ) -> None:
        self._store, self._loop, self._host, self._backoff_s = store, loop, host, backoff_s
        self.plans, self.runs, self.lost = plans, dict[str, Run](), set[str]()
        self._events, self._buried = Recorder(store, "kubelet", "node"), False

    def take(self, pod: Object) -> None:
        """Begin with a pod that was put on a node."""
        container, inits = pod["spec"]["containers"][0], pod["spec"].get("initContainers") or []
        main = Told(
            container["name"],
            container["image"],
            waiting("PodInitializing" if inits else "ContainerCreating"),
        )
        init = Told(inits[-1]["name"], inits[-1]["image"], waiting("PodInitializing")) if inits else None
        run = self.runs[pod["metadata"]["uid"]] = Run(pod, main, init)
        self._tell(run)
        self._loop.after(self.plans.of(pod["metadata"]["name"]).start_s, lambda: self._begin(run))

    def _begin(self, run: Run) -> None:
        if run.ending or run.uid not in self.runs:
            return
        if run.init and containers.is_root_unasked(run.pod["spec"]):
            where = f'pod: "{run.place[1]}_{run.place[0]}({run.uid})", container: {run.init.name}'
            said = f"container has runAsNonRoot and image will run as root ({where})"
            run.init.state = waiting("CreateContainerConfigError", said)
            self._say(run, "Warning", "Failed", f"Error: {said}", run.init)
            self._tell(run)
        elif run.init:
            run.init.state = {"running": {"startedAt": now()}}
            self._say(run, "Normal", "Started", f"Started container {run.init.name}", run.init)
            self._tell(run)
            self.wait_for_master(run)
        else:
            self._start(run)

    def wait_for_master(self, run: Run) -> None:
        """End the container that waits for the master's name, once the master is there."""
        assert run.init is not None
        master = re.sub(r"-worker-\d+$", "-master-0", run.place[1])
        found = self._named(run.place[0], master)
        if not run.init.runs or (
            run.init.name == "init-pytorch" and not (found and found.phase == "Running")
        ):
            return
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": run.started, "finishedAt": now()}
        run.init.state = {"terminated": ended}
        self._tell(run)
        self._start(run)

    def _start(self, run: Run) -> None:
        """Start a pod's container."""
        if run.ending or run.uid not in self.runs:
            return
        if self._buried:
            return
        run.plan, run.oom = self.plans.of(run.place[1], take=True), False
        run.number += 1
        if run.plan.waits and run.plan.waits != "Unschedulable":
            self._hold(run, run.plan.waits, run.plan.message)
            return
        image = run.main.image
        self._say(run, "Normal", "Pulled", f'Container image "{image}" already present on machine')
        try:
            started = self._launch(run)
        except containers.Misconfigured as error:
            self._hold(run, "CreateContainerConfigError", str(error))
            return
        except OSError as error:
            self._ended(run, 128, "StartError", f"failed to create containerd task: {error}")
            return
        run.process, run.main.state, run.phase = started, {"running": {"startedAt": now()}}, "Running"
        self._say(run, "Normal", "Created", f"Created container: {run.main.name}")
        self._say(run, "Normal", "Started", f"Started container {run.main.name}")
        self._tell(run)
        for other in [*self.runs.values()]:
            if other.init and other.init.runs and other.place[0] == run.place[0]:
                self.wait_for_master(other)

    def _launch(self, run: Run) -> containers.Process | None:
        """Start the process of a container; nothing if none is to run."""
        pod, container = run.pod, run.pod["spec"]["containers"][0]
        values = containers.variables(self._store, pod, container)
        plan, number = run.plan, run.number
        log = run.logs.begin()
        if not plan.process:
            log.write(plan.log.encode())
            if plan.code is not None:
                code = plan.code
                self._loop.after(plan.runs_s, lambda: self.act(run, number, code))
            return None
        pairs = containers.paths(self._host, pod, container)
        arguments = [
            containers.moved(part, pairs) for part in containers.command(self._host, container, values)
        ]
        values = {name: containers.moved(value, pairs) for name, value in values.items()}
        values = dict(self._host.env) | containers.on_loopback(values, self._host, pod)
        return containers.Process(
            self._loop, self._host, arguments, values, run.uid, log, lambda code: self._ended(run, code)
        )

    def act(self, run: Run, number: int, code: int, reason: str = "", message: str = "") -> None:
        """End a container that has no process."""
        if run.number == number and run.main.runs and run.uid in self.runs:
            run.logs.starts[-1].close()
            self._ended(run, code, reason, message)

    def _hold(self, run: Run, reason: str, message: str) -> None:
        """Let a pod wait that cannot start."""
        image = run.main.image
        said = message or f'failed to pull and unpack image "{image}": not found'
        self._say(run, "Warning", "Failed", f"Error: {reason if 'Image' in reason else said}")
        run.main.state = waiting(reason, said)
        self._tell(run)
        number = run.number
        if reason in ("ErrImagePull", "ImagePullBackOff"):
            turn = {"ErrImagePull": "ImagePullBackOff", "ImagePullBackOff": "ErrImagePull"}[reason]
            words = f'Back-off pulling image "{image}"' if turn == "ImagePullBackOff" else ""
            self._loop.after(self._backoff_s, lambda: self._hold_on(run, number, turn, words))

    def _hold_on(self, run: Run, number: int, reason: str, message: str) -> None:
        if run.number != number or run.ending or run.uid not in self.runs:
            return
        if self.plans.of(run.place[1]).waits:
            self._hold(run, reason, message)
        else:
            self._start(run)

    def _ended(self, run: Run, code: int, reason: str = "", message: str = "") -> None:
        """Note how a container has ended; start it again where its pod says so."""
        if run.uid not in self.runs or self.out_of_reach(run):
            run.process = None
            return
        begun = (run.main.state.get("running") or {}).get("startedAt", now())
        usual = "Completed" if code == 0 else "OOMKilled" if run.oom else "Error"
        told = {"exitCode": code, "reason": reason or usual, "startedAt": begun, "finishedAt": now()}
        if text := message or self._last_words(run, code):
            told["message"] = text
        told["containerID"] = podstates.container_id(run.uid, run.main.restarts)
        run.main.state, run.process = {"terminated": told}, None
        policy = run.pod["spec"].get("restartPolicy", "Always")
        if run.ending:
            self._finish(run)
        elif policy == "Always" or (policy == "OnFailure" and code != 0):
            self._tell(run)
            self._again(run, told)
        else:
            self._tell(run)
            run.phase = "Succeeded" if code == 0 else "Failed"
            self._loop.do(lambda: self._tell(run))

    def _last_words(self, run: Run, code: int) -> str:
        container = run.pod["spec"]["containers"][0]
        if code == 0 or container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ""
        return run.logs.starts[-1].text()[-2048:] if run.logs.starts else ""

    def _again(self, run: Run, told: Object) -> None:
        """Start a container once more: the first time at once, then after longer and longer pauses."""
        pause = self._backoff_s * 2 ** (run.main.restarts - 1) if run.main.restarts else 0.0
        number = run.number

        def restart() -> None:
            if run.number == number and not run.ending:
                run.main.last, run.main.restarts = {"terminated": told}, run.main.restarts + 1
                self._start(run)

        if pause:
            where = f"pod={run.place[1]}_{run.place[0]}({run.uid})"
            words = f"back-off {pause:g}s restarting failed container={run.main.name} {where}"
            run.main.last, run.main.state = {"terminated": told}, waiting("CrashLoopBackOff", words)
            self._say(run, "Warning", "BackOff", f"Back-off restarting failed container {run.main.name}")
            self._tell(run)
        self._loop.after(pause, restart)

    def stop(self, run: Run) -> None:
        """Tell a pod to end, as its deletion asks for."""
        pod = self._store.get(POD, *run.place)
        run.ending = True
        grace = float(pod["metadata"].get("deletionGracePeriodSeconds", 0))
        if not run.main.runs:
            if run.init and run.init.runs:
                began = run.init.state["running"]["startedAt"]
                run.init.state = {"terminated": {"exitCode": 137, "reason": "Error", "startedAt": began}}
            elif not run.main.ended:
                run.main.state = {"terminated": dict(podstates.UNKNOWN_END)}
            self._finish(run)
            return
        self._say(run, "Normal", "Killing", f"Stopping container {run.main.name}")
        number = run.number
        if run.process:
            run.process.signal(signal.SIGTERM)
            self._loop.after(grace, lambda: self.kill(run, number))
        elif run.plan.on_term is not None:
            code = run.plan.on_term
            self._loop.do(lambda: self.act(run, number, code))
        else:
            self._loop.after(grace, lambda: self.act(run, number, 137))

    def kill(self, run: Run, number: int | None = None, *, oom: bool = False) -> None:
        """Kill what a pod runs, if it still runs."""
        if run.main.runs and number in (None, run.number):
            run.oom = oom
            if run.process:
                run.process.kill()
            else:
                self.act(run, run.number, 137)

    def bury(self) -> None:
        """Kill everything that runs on any node, and wait for its end."""
        self.runs.clear()
        self._buried = True
        for process in [*self._host.alive]:
            process.bury()

    def out_of_reach(self, run: Run) -> bool:
        """Tell whether nothing is heard of a pod's node."""
        found = self._store.find(POD, *run.place)
        return bool(found and found["spec"].get("nodeName") in self.lost)

    def fail(self, run: Run, reason: str, message: str) -> None:
        """End a pod for a reason of the node's own; its object stays."""
        run.ending, run.phase = True, "Failed"
        if run.process:
            run.process.kill()
        began = (run.main.state.get("running") or {}).get("startedAt", now())
        run.main.state = {
            "terminated": {"exitCode": 137, "reason": "Error", "startedAt": began, "finishedAt": now()}
        }
        self._tell(run, {"reason": reason, "message": message})

    def _finish(self, run: Run) -> None:
        """Say how a deleted pod has ended, and let its object go."""
        ended = run.main.ended or {}
        run.phase = "Succeeded" if ended.get("exitCode") == 0 else "Failed"
        self._tell(run)
        # A moment later, as always: the operator sees how it has ended.
        self._loop.do(lambda: self._let_go(run))

    def _let_go(self, run: Run) -> None:
        found = self._store.find(POD, *run.place)
        if found is not None and found["metadata"]["uid"] == run.uid:
            delete(self._store, found, {"gracePeriodSeconds": 0})

    def _named(self, namespace: str, name: str) -> Run | None:
        found = self._store.find(POD, namespace, name)
        return self.runs.get(found["metadata"]["uid"]) if found else None

    def _tell(self, run: Run, more: Object | None = None) -> None:
        """Write a pod's status."""
        found = self._store.find(POD, *run.place)
        if found is None or found["metadata"]["uid"] != run.uid:
            return
        told = podstates.status(found, run.phase, run.main, run.init, run.started)
        self._store.put(POD, {**found, "status": told | (more or {})})

    def _say(self, run: Run, kind: str, reason: str, message: str, about: Told | None = None) -> None:
        found = self._store.find(POD, *run.place)
        if found is not None:
            part = "initContainers" if about else "containers"
            name = (about or run.main).name
            self._events.say(found, kind, reason, message, f"spec.{part}{{{name}}}")
