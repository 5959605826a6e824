"""A commit of a git repository, from git's own server: fetched, checked, refused where it is not there."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.storage import servers
from tests.storage.git_server import commit, git, serving
from trainwright.errors import DependencyError, InputError, PermissionRefused, TransientError
from trainwright.storage import fetch_commit, parse_commit, take_listing

Fetch = Callable[..., Path]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return servers.certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose pack has deltas: a large file that changed a little from commit to commit."""
    folder = tmp_path / "served" / "team"
    (folder / "features" / "deep").mkdir(parents=True)
    lines = [str(random.Random(place).random()) for place in range(20_000)]  # noqa: S311
    for number in range(3):
        lines[number * 100] = "changed"
        (folder / "features" / "large.txt").write_text("\n".join(lines))
        (folder / "features" / f"large{number}.txt").write_text("\n".join([*lines, "more"]))
        (folder / "features" / "deep" / "x.py").write_text(f"value = {number}\n")
        (folder / "README").write_text(f"{number}\n")
        commit(folder)
    git(folder, "repack", "-a", "-d", "--quiet", "--depth=50", "--window=50")
    return folder


@pytest.fixture
def fetched(
    tls: tuple[Path, Path], repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fetch]:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tls[0]))
    monkeypatch.setenv("NO_PROXY", "*")
    answers: list[int] = []
    with serving(repository.parent, *tls, answers) as address:

        def fetch(rest: str, *, failing: tuple[int, ...] = (), patience_s: float = 60) -> Path:
            answers[:] = failing
            place = parse_commit(f"git+{address}/{rest}")
            assert place is not None
            target = tmp_path / "target"
            fetch_commit(place, target, patience_s)
            return target

        yield fetch


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


def test_whole_commit_is_what_git_itself_checks_out(fetched: Fetch, repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert files(fetched(f"team@{head}")) == files(repository)


def test_folder_of_an_earlier_commit_is_fetched_as_it_was(fetched: Fetch, repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD~2")
    found = files(fetched(f"team@{first}#subdirectory=features"))
    assert sorted(found) == ["deep/x.py", "large.txt", "large0.txt"]
    assert found["deep/x.py"] == b"value = 0\n"


@pytest.mark.parametrize(
    ("rest", "kind", "said"),
    [
        (f"team@{'0' * 40}", InputError, "does not give this commit: ERR .*0000"),
        ("team@{head}#subdirectory=feature", InputError, "no folder 'feature'; it holds README, features"),
        (f"nobody@{'0' * 40}", InputError, "there is no such repository"),
    ],
)
def test_what_is_not_there_is_bad_input(
    fetched: Fetch, repository: Path, rest: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        fetched(rest.replace("{head}", git(repository, "rev-parse", "HEAD")))


def test_server_that_fails_in_passing_is_asked_again(fetched: Fetch, repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert (fetched(f"team@{head}", failing=(503, 429)) / "README").exists()
    with pytest.raises(TransientError, match="fetching failed 1 times"):
        fetched(f"team@{head}", failing=(503,), patience_s=0)
    with pytest.raises(PermissionRefused, match="the server refused: 401"):
        fetched(f"team@{head}", failing=(401,))


def test_server_that_is_not_there_is_a_dependency_that_is_down(tmp_path: Path) -> None:
    place = parse_commit(f"git+https://127.0.0.1:1/team@{'0' * 40}")
    assert place is not None
    with pytest.raises(DependencyError, match="nothing answers there"):
        fetch_commit(place, tmp_path / "target", 0)


def test_link_in_a_commit_is_refused(fetched: Fetch, repository: Path) -> None:
    (repository / "features" / "link").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="'link' is a link"):
        fetched(f"team@{commit(repository)}#subdirectory=features")


@pytest.mark.parametrize(
    "uri",
    [
        "git+https://host/team",
        "git+https://host/team@main",
        f"git+https://host/team@{'a' * 39}",
        f"git+http://host/team@{'a' * 40}",
        f"git+https://host/team@{'a' * 40}#folder=x",
        f"git+https://me:secret@host/team@{'a' * 40}",
        f"git+https://token@host/team@{'a' * 40}",
    ],
)
def test_uri_without_a_whole_commit_or_with_credentials_is_bad_input(uri: str) -> None:
    with pytest.raises(InputError):
        parse_commit(uri)


def test_content_of_a_commit_is_its_name() -> None:
    one, other = (take_listing(f"git+https://host/team@{digit * 40}#subdirectory=x") for digit in "ab")
    assert one.content_digest != other.content_digest
    assert one.content_digest == take_listing(one.source).content_digest
