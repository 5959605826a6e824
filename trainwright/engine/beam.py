"""Do work by Apache Beam, whose workers leave results in a folder or bucket that all reach."""

import hmac
import io
import pickle
import re
import secrets
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from functools import cache, lru_cache, partial
from importlib.metadata import distributions
from platform import python_version
from typing import Any

import trainwright
from trainwright import storage
from trainwright.errors import DependencyError, InputError, TrainwrightError
from trainwright.experiment import DataEngine
from trainwright.tables.workers import TaskFailure

_DIRECT = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""Beam's runner for one machine. What Beam calls ``DirectRunner`` first looks for a program to download."""

_NO_PIP = "--experiments=disable_logging_submission_environment"
"""Else Beam runs ``pip freeze``, which no image has, and warns that it failed."""

_SIGNATURE = 32
_THREADS, _READ_AHEAD = 16, 64
_ANSWER_S = 60

_INCOMPATIBLE = r"Submission environment: \S*/beam_(\S+)\. Runtime environment: \S*/beam_(\S+)\."
"""Beam's own check of a worker, in the message of a job that failed."""


def run(
    work: Callable[[Any], Any], items: Sequence[Any], engine: DataEngine, step: str, store: str
) -> Iterator[Any]:
    """Yield the result, or the failure, of each item in their order.

    Results are pickled, and signed with a key that only this job has, because others may write to the store.
    So is the work, which may hold as much data as a worker has memory for, more than a job takes.
    """
    if engine.is_remote and not store:
        raise InputError(
            f"{engine.name} works on other machines, which cannot write into this step's folder",
            where="engine.store",
            hint="Name a bucket, or a folder that all machines mount, in engine.store.",
        )
    with tempfile.TemporaryDirectory(prefix="trainwright-engine-") as here:
        prefix, key = storage.join(store or here, secrets.token_hex(8)), secrets.token_bytes(32)
        options = [option.replace("{step}", step) for option in engine.options]
        task = partial(_write, installed_versions(), prefix, key)
        try:
            storage.create(_work_uri(prefix), _signed(work, key))
            _run_pipeline(engine, options, task, items)
            with ThreadPoolExecutor(_THREADS) as threads:
                for start in range(0, len(items), _READ_AHEAD):
                    places = range(start, min(start + _READ_AHEAD, len(items)))
                    yield from threads.map(partial(_read, prefix, key, engine.name), places)
        finally:
            with suppress(TrainwrightError):  # the first failure is the one to report
                storage.remove([_work_uri(prefix), *(_uri(prefix, place) for place in range(len(items)))])


def _run_pipeline(
    engine: DataEngine, flags: Sequence[str], task: Callable[[tuple[int, Any]], None], items: Sequence[Any]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Beam about packages that it could also use, and about itself
        pipeline = _pipeline(engine, flags)
        try:
            import apache_beam

            beam: Any = apache_beam  # its functions have no types
            # Reshuffled, so that Beam does not fuse items into one unit of work.
            spread = pipeline | beam.Create(list(enumerate(items))) | beam.Reshuffle()
            _ = spread | "Work" >> beam.Map(task)
            state = pipeline.run().wait_until_finish()
        except NotImplementedError as error:  # such as an option that this runner needs
            raise _rejected(engine, str(error)) from None
        except Exception as error:
            if found := re.search(_INCOMPATIBLE, str(error)):
                require_same_versions({"Beam": found[2]}, {"Beam": found[1]}, "engine.options")
            raise lost(engine.name, error) from error
    if state != "DONE":
        raise lost(engine.name, f"the job ended as {state}")


def _pipeline(engine: DataEngine, flags: Sequence[str]) -> Any:
    """Return an empty pipeline; reject options that Beam would only drop with a warning."""
    try:
        from apache_beam import Pipeline
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise DependencyError(
            f"Apache Beam is not installed here: {error}",
            where="engine.name",
            hint="Build the image of this step with VARIANT=engines, or have its section run on `local`.",
        ) from None
    said = io.StringIO()
    try:
        with redirect_stderr(said):  # argparse writes there, and exits
            runner = f"--runner={engine.name if engine.is_remote else _DIRECT}"
            options = PipelineOptions([runner, _NO_PIP, *flags])
            known = options.get_all_options()
            unknown = options.get_all_options(retain_unknown_options=True).keys() - known.keys()
            if unknown and known["job_endpoint"]:
                unknown -= _options_of_job_service(engine, known["job_endpoint"])
            pipeline = Pipeline(options=options)
    except (ValueError, SystemExit) as error:
        raise _rejected(engine, said.getvalue().strip().rpartition("error: ")[2] or str(error)) from None
    if unknown:
        raise _rejected(engine, f"unknown options {sorted(unknown)}")
    return pipeline


def _options_of_job_service(engine: DataEngine, endpoint: str) -> set[str]:
    import grpc  # type: ignore[import-untyped, unused-ignore]
    from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

    request: Any = beam_job_api_pb2.DescribePipelineOptionsRequest()
    try:
        with grpc.insecure_channel(endpoint) as channel:
            stub: Any = beam_job_api_pb2_grpc.JobServiceStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
            found = stub.DescribePipelineOptions(request, timeout=_ANSWER_S, wait_for_ready=True)
    except grpc.RpcError as error:
        raise lost(engine.name, error) from error
    return {option.name for option in found.options}


def _rejected(engine: DataEngine, why: str) -> InputError:
    import apache_beam

    return InputError(
        f"Beam {apache_beam.__version__} rejects the options of {engine.name}: {why:.800}",
        where="engine.options",
        hint="Correct them: `engine.options` takes options of this version of Beam, `--name=value` each.",
    )


def _write(versions: Mapping[str, str], prefix: str, key: bytes, numbered: tuple[int, Any]) -> None:
    """Do one item and write its result; the first result counts, as Beam may try twice."""
    place, item = numbered
    try:
        require_same_versions(installed_versions(), versions, "engine.options")
        result = _work(_work_uri(prefix), key)(item)
    except Exception as error:
        result = TaskFailure.of(error)
    with suppress(storage.AlreadyExists):
        storage.create(_uri(prefix, place), _signed(result, key))


@lru_cache(maxsize=1)
def _work(uri: str, key: bytes) -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = _verified(storage.read_bytes(uri), uri, key)
    return found


def _read(prefix: str, key: bytes, runner: str, place: int) -> Any:
    uri = _uri(prefix, place)
    try:
        content = storage.read_bytes(uri)
    except InputError:
        raise lost(runner, f"the result of item {place} is not there") from None
    return _verified(content, uri, key)


def _signed(value: object, key: bytes) -> bytes:
    content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return hmac.digest(key, content, "sha256") + content


def _verified(content: bytes, uri: str, key: bytes) -> Any:
    if not hmac.compare_digest(hmac.digest(key, content[_SIGNATURE:], "sha256"), content[:_SIGNATURE]):
        raise InputError(
            "another process wrote this file of a job",
            where=uri,
            hint="Let only this step and its workers write to engine.store.",
        )
    return pickle.loads(content[_SIGNATURE:])  # noqa: S301  # nosec B301


def _work_uri(prefix: str) -> str:
    return f"{prefix}.work"


def _uri(prefix: str, place: int) -> str:
    return f"{prefix}-{place:07d}.result"


@cache
def installed_versions() -> dict[str, str]:
    """Return the versions of Python, this library and the packages of this process."""
    folders = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    found = {str(one.metadata["Name"]).lower(): one.version for one in distributions(path=folders)}
    return found | {"python": python_version(), "trainwright": trainwright.__version__}


def require_same_versions(worker: Mapping[str, str], step: Mapping[str, str], where: str) -> None:
    """Reject a worker whose packages differ from the step's.

    Raises:
        InputError: It names the first packages that differ, with both versions.
    """
    names = sorted(name for name in {*worker, *step} if worker.get(name) != step.get(name))
    if names:
        shown = ", ".join(
            f"{name} {worker.get(name, 'absent')} ({step.get(name, 'absent')})" for name in names[:3]
        )
        raise InputError(
            f"expected the packages of this step in the engine's workers, found {len(names)} others, such as "
            f"{shown}; in parentheses: the step's",
            where=where,
            hint="Run the workers from the image of this step.",
        )


def lost(engine: str, error: object) -> DependencyError:
    """Return the error for an engine that is absent or gave up."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[0] if len(lines) == 1 else f"{lines[0]:.250} … {lines[-1]:.250}"  # of a traceback
    return DependencyError(
        f"{engine} did not finish the work: {text:.500}",
        where="engine.name",
        hint="See the engine's own log. The next run continues with what this one committed.",
    )
