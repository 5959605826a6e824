"""A commit of a git repository, from git's own server: fetched, checked, refused where it is not there."""

import hashlib
import random
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.storage import servers
from tests.storage.git_server import commit, git, serving
from trainwright.errors import DependencyError, InputError, PermissionRefused, TransientError
from trainwright.storage import fetch_commit, parse_commit, take_listing
from trainwright.storage import git as git_client
from trainwright.storage.git import GitCommit

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
def trusted(tls: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tls[0]))
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def fetched(tls: tuple[Path, Path], trusted: None, repository: Path, tmp_path: Path) -> Iterator[Fetch]:
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


def test_server_that_fails_in_passing_is_retried(fetched: Fetch, repository: Path) -> None:
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


def test_link_in_a_commit_is_rejected(fetched: Fetch, repository: Path) -> None:
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


def test_annotated_tag_is_bad_input_and_the_hint_leads_to_its_commit(
    fetched: Fetch, repository: Path
) -> None:
    git(repository, "tag", "--annotate", "v1", "--message", "a release")
    with pytest.raises(InputError, match="this names a tag, not a commit") as caught:
        fetched(f"team@{git(repository, 'rev-parse', 'v1')}")
    assert "git rev-parse TAG^{commit}" in caught.value.hint
    assert (fetched(f"team@{git(repository, 'rev-parse', 'v1^{commit}')}") / "README").exists()


def test_commit_above_the_size_limit_is_bad_input(
    fetched: Fetch, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "zeros").write_bytes(bytes(3_000_000))  # a small pack
    head = commit(repository)
    monkeypatch.setattr(git_client, "MAX_BYTES", 2_500_000)
    with pytest.raises(InputError, match="the commit is larger than 2,500,000 bytes"):
        fetched(f"team@{head}")


def test_url_that_cannot_be_one_is_bad_input_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this is no URL"):
        fetch_commit(GitCommit("https://host:port/team", "0" * 40, ""), tmp_path / "target", 60)


def packed(kind: int, content: bytes, head: bytes = b"") -> bytes:
    """Write an object as a pack holds it; ``head`` names the base of a delta."""
    size = len(content)
    first, size = kind << 4 | size & 15, size >> 4
    numbers = bytearray()
    while size:
        numbers.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    return bytes(numbers) + bytes([first]) + head + zlib.compress(content)


def name_of(kind: str, content: bytes) -> str:
    head = f"{kind} {len(content)}\0".encode()
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest()


NAME = bytes.fromhex(name_of("blob", b"abc"))


def entry(mode: str, name: str, digest: str) -> bytes:
    return f"{mode} {name}\0".encode() + bytes.fromhex(digest)


def commit_of(tree: str) -> bytes:
    return f"tree {tree}\nauthor a <a> 0 +0000\n".encode()


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(tls: tuple[Path, Path], *answers: Answer) -> Iterator[str]:
    """Serve answers of our own over TLS, the last one again and again; give the address."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, fields, content = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in fields.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:  # a server whose socket is closed before takes a whole core
            server.shutdown()


def pack_of(*objects: bytes) -> Answer:
    """Make the answer of a git server that sends these objects."""
    pack = b"PACK" + struct.pack(">II", 2, len(objects)) + b"".join(objects)
    pack += hashlib.sha1(pack, usedforsecurity=False).digest()
    lines = [b"packfile\n", *(b"\1" + pack[at : at + 60_000] for at in range(0, len(pack), 60_000))]
    return 200, {}, b"".join(b"%04x" % (len(line) + 4) + line for line in lines) + b"0000"


def fetch_objects(tls: tuple[Path, Path], target: Path, commit: str, *objects: bytes) -> None:
    with answering(tls, pack_of(*objects)) as address:
        fetch_commit(GitCommit(f"{address}/team", commit, ""), target, 0)


def fetch_tree(tls: tuple[Path, Path], target: Path, tree: bytes, *others: bytes) -> None:
    head = commit_of(name_of("tree", tree))
    fetch_objects(tls, target, name_of("commit", head), packed(1, head), packed(2, tree), *others)


def test_pack_made_by_hand_is_fetched(tls: tuple[Path, Path], trusted: None, tmp_path: Path) -> None:
    delta = b"\x03\x05\x90\x03\x02de"
    tree = entry("100644", "x", name_of("blob", b"abcde"))
    base = packed(3, b"abc")
    fetch_tree(tls, tmp_path / "t", tree, base, packed(7, delta, NAME))
    assert (tmp_path / "t" / "x").read_bytes() == b"abcde"


@pytest.mark.covers("B29")
@pytest.mark.parametrize("name", ["..", ".git", ".", "a/b", "/etc/planted"])
def test_tree_whose_names_lead_out_of_the_folder_is_rejected(
    name: str, tls: tuple[Path, Path], trusted: None, tmp_path: Path
) -> None:
    tree = entry("100644", name, name_of("blob", b"planted"))
    with pytest.raises(PermissionRefused, match="leads out of the repository"):
        fetch_tree(tls, tmp_path / "t", tree, packed(3, b"planted"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"planted"]


@pytest.mark.parametrize(
    ("delta", "unknown"),
    [
        (b"\x04\x05\x90\x03\x02de", 0),  # for another base
        (b"\x03\x05\x90\x03\x01d", 0),  # shorter than it says
        (b"\x03\x04\x90\x03\x02de", 0),  # longer than it says
        (b"\x03\x05\x90\x05", 0),  # copies past the end of its base
        (b"\x03\x05\x00", 0),  # a reserved order
        (b"\x80" * 200_000, 0),  # a number without end
        (b"\x03\x05\x90\x03\x02de", 1),  # no object has that name
    ],
)
def test_delta_that_is_wrong_is_a_typed_error(
    delta: bytes, unknown: int, tls: tuple[Path, Path], trusted: None, tmp_path: Path
) -> None:
    tree, base = entry("100644", "x", name_of("blob", b"abcde")), packed(3, b"abc")
    with pytest.raises(TransientError, match="damaged objects"):
        fetch_tree(tls, tmp_path / "t", tree, base, packed(7, delta, bytes(20) if unknown else NAME))


def test_objects_that_are_missing_cut_off_or_of_another_kind_are_typed_errors(
    tls: tuple[Path, Path], trusted: None, tmp_path: Path
) -> None:
    blob = name_of("blob", b"abc")
    with pytest.raises(TransientError, match="damaged objects: KeyError"):
        fetch_tree(tls, tmp_path / "t", entry("100644", "x", blob))
    with pytest.raises(TransientError, match="an object ends too early"):
        fetch_objects(tls, tmp_path / "t", "0" * 40, b"\x33" + zlib.compress(bytes(5000), 0)[:100])
    with pytest.raises(TransientError, match="expected a tree"):
        fetch_tree(tls, tmp_path / "t", entry("40000", "x", blob), packed(3, b"abc"))
    with pytest.raises(TransientError, match="damaged objects: error"):
        fetch_objects(tls, tmp_path / "t", "0" * 40, b"\x33" + b"no zlib stream" * 3)


@pytest.mark.covers("B29")
def test_small_pack_of_a_huge_object_is_rejected_before_it_is_unpacked(
    tls: tuple[Path, Path], trusted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tracemalloc

    monkeypatch.setattr(git_client, "MAX_BYTES", 1_000_000)
    huge = packed(3, bytes(100_000_000))
    tracemalloc.start()
    with pytest.raises(InputError, match="larger than 1,000,000 bytes"):
        fetch_objects(tls, tmp_path / "t", "0" * 40, huge)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    grows = b"\x03\x80\x80\x80\x10" + b"\x90\x03" * 100
    base = packed(3, b"abc")
    with pytest.raises(InputError, match="larger than 1,000,000 bytes"):
        fetch_objects(tls, tmp_path / "t", "0" * 40, base, packed(7, grows, NAME))


def test_folders_that_repeat_themselves_are_bounded(
    tls: tuple[Path, Path], trusted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_client, "MAX_BYTES", 1_000_000)
    tree = entry("100644", "x", name_of("blob", b"abc"))
    others = [packed(3, b"abc")]
    for _ in range(8):
        others.append(packed(2, tree))
        tree = b"".join(entry("40000", str(number), name_of("tree", tree)) for number in range(8))
    with pytest.raises(InputError, match="larger than 1,000,000 bytes"):
        fetch_tree(tls, tmp_path / "t", tree, *others)
    assert len(list((tmp_path / "t").rglob("*"))) < 2000


@pytest.mark.parametrize(
    "there", ["http://elsewhere.example/team", "https://me:secret@elsewhere.example/team"]
)
def test_redirect_is_not_followed_and_the_hint_names_its_target(
    there: str, tls: tuple[Path, Path], trusted: None, tmp_path: Path
) -> None:
    moved: Answer = (301, {"Location": f"{there}/git-upload-pack", "Content-Length": "0"}, b"")
    with (
        answering(tls, moved) as address,
        pytest.raises(InputError, match="the repository has moved") as caught,
    ):
        fetch_commit(GitCommit(f"{address}/team", "0" * 40, ""), tmp_path / "t", 60)
    assert "elsewhere.example/team:" in caught.value.hint
    assert "secret" not in str(caught.value)


def test_tls_connection_that_is_cut_off_is_retried_and_an_unknown_certificate_is_bad_input(
    tls: tuple[Path, Path], trusted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def cut_off() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)  # the client's hello; then the connection ends

        threading.Thread(target=cut_off, daemon=True).start()
        place = GitCommit(f"https://localhost:{listener.getsockname()[1]}/team", "0" * 40, "")
        with pytest.raises((TransientError, DependencyError), match=r"fetching failed [2-9]\d* times"):
            fetch_commit(place, tmp_path / "t", 1)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with (
        answering(tls, (200, {}, b"")) as address,
        pytest.raises(InputError, match="certificate is not trusted"),
    ):
        fetch_commit(GitCommit(f"{address}/team", "0" * 40, ""), tmp_path / "t", 60)
