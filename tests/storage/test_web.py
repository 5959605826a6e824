"""https:// over a real server with a real certificate."""

import socket
from pathlib import Path

import pytest

from tests.storage.faults import Answer, Reset, Short
from tests.storage.stores import Site
from trainwright import storage
from trainwright.errors import DependencyError, InputError, PermissionRefused, TransientError
from trainwright.storage import Access
from trainwright.storage.access import addresses

CONTENT = b"".join(b"%06d\n" % number for number in range(100_000))


def test_file_is_listed_with_the_md5_that_it_has_on_a_disk(site: Site, tmp_path: Path) -> None:
    site.web.put("/data/x.csv", CONTENT, '"1"')
    (tmp_path / "x.csv").write_bytes(CONTENT)
    there, here = (
        storage.take_listing(f"{site.uri}/data/x.csv", site.access),
        storage.take_listing(str(tmp_path)),
    )
    assert there.content_digest == here.content_digest
    assert (there.files[0].version, there.protection) == ('"1"', "pinned_unprotected")


def test_any_byte_is_read_by_range_and_a_break_is_resumed(site: Site) -> None:
    site.web.put("/x.csv", CONTENT, '"1"')
    site.proxy.plan(Reset(70_000), part="/x.csv")
    site.proxy.plan(Short(10), part="/x.csv")
    with storage.open_file(f"{site.uri}/x.csv", access=site.access) as stream:
        stream.seek(-7, 2)
        assert stream.read() == b"099999\n"
        stream.seek(0)
        assert stream.read() == CONTENT
    assert site.proxy.unused() == []


@pytest.mark.parametrize("etag", ['"1"', ""])
def test_server_without_ranges_is_read_from_its_start(site: Site, etag: str) -> None:
    site.web.ranges = False
    site.web.put("/x.csv", CONTENT, etag)
    with storage.open_file(f"{site.uri}/x.csv", access=site.access) as stream:
        stream.seek(500_000)
        assert stream.read(100) == CONTENT[500_000:500_100]
        stream.seek(0)
        assert stream.read() == CONTENT


def test_empty_file_is_a_file(site: Site) -> None:
    site.web.put("/x.csv", b"", '"1"')
    (entry,) = storage.take_listing(f"{site.uri}/x.csv", site.access).files
    assert (entry.size, entry.checksum) == (0, "md5:d41d8cd98f00b204e9800998ecf8427e")


def test_file_that_changed_is_never_read_under_its_old_version(site: Site) -> None:
    site.web.put("/x.csv", CONTENT, '"1"')
    (entry,) = storage.list_files(f"{site.uri}/x.csv", access=site.access)
    site.web.put("/x.csv", CONTENT[::-1], '"2"')
    with pytest.raises(storage.ObjectChanged):
        storage.open_file(entry.uri, entry.version, site.access)
    site.web.put("/x.csv", CONTENT, '"1"')
    stream = storage.open_file(entry.uri, entry.version, site.access)
    site.web.put("/x.csv", CONTENT[::-1], '"2"')
    with pytest.raises(storage.ObjectChanged):
        stream.read()


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, InputError), (403, PermissionRefused), (401, PermissionRefused), (503, TransientError)],
)
def test_what_the_server_says_becomes_a_typed_error(site: Site, status: int, error: type[Exception]) -> None:
    site.proxy.plan(Answer(status), times=99)
    with pytest.raises(error):
        storage.read_bytes(f"{site.uri}/x.csv", access=Access(site.access.hosts, True, retry_s=0.3))


def test_redirects_lead_only_to_hosts_that_are_allowed_and_never_away_from_https(site: Site) -> None:
    site.web.put("/y.csv", CONTENT, '"1"')
    site.web.redirects["/x.csv"] = f"{site.uri}/y.csv"
    assert storage.read_bytes(f"{site.uri}/x.csv", access=site.access) == CONTENT
    for target, said in (
        ("https://other.example/y.csv", "not one that may be read"),
        (f"http://localhost:{site.proxy.port}/y.csv", "leads away from https"),
        ("https://169.254.169.254/latest/meta-data", "metadata server"),
        ("https://me:secret@localhost/y.csv", "leads away from https"),
    ):
        site.web.redirects["/x.csv"] = target
        with pytest.raises(PermissionRefused, match=said) as caught:
            storage.read_bytes(f"{site.uri}/x.csv", access=site.access)
        assert "secret" not in str(caught.value)
    site.web.redirects["/x.csv"] = f"{site.uri}/x.csv"
    with pytest.raises(InputError, match="redirected more than 5 times"):
        storage.read_bytes(f"{site.uri}/x.csv", access=site.access)


@pytest.mark.covers("A4")
def test_redirect_to_this_machine_is_rejected_by_its_address(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is on the list, and leads elsewhere than it should."""
    other = f"data.example:{site.proxy.port}"
    names(monkeypatch, {"data.example": ["127.0.0.1"], "localhost": ["127.0.0.1"]})
    with pytest.raises(PermissionRefused, match="leads to this machine"):
        storage.read_bytes(f"https://{other}/y.csv", access=Access(hosts=(other,)))
    assert site.proxy.seen == []


def test_every_connection_asks_for_its_address_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was checked is what is connected to; an answer that changes meets the check of the next one."""
    site.web.put("/x.csv", CONTENT, '"1"')
    asked = names(monkeypatch, {"data.example": ["127.0.0.1"]}, then={"data.example": ["10.0.0.1"]})
    uri = f"https://data.example:{site.proxy.port}/x.csv"
    access = Access(hosts=(uri.split("/")[2],), local_addresses=True, retry_s=0.3)
    assert storage.head(uri, access=access).size == len(CONTENT)
    assert asked == ["data.example"]
    with pytest.raises(PermissionRefused, match="private address"):
        storage.head(uri, access=access)


def test_certificate_of_another_is_rejected(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, {"elsewhere.example": ["127.0.0.1"]})
    host = f"elsewhere.example:{site.proxy.port}"
    with pytest.raises(PermissionRefused, match="certificate"):
        storage.read_bytes(f"https://{host}/x.csv", access=Access((host,), local_addresses=True, retry_s=5))


def test_proxy_of_the_environment_is_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    site.web.put("/x.csv", CONTENT, '"1"')
    assert storage.read_bytes(f"{site.uri}/x.csv", access=site.access) == CONTENT


def test_name_without_an_address_is_a_dependency_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, {})
    with pytest.raises(DependencyError, match="nothing answers there"):
        storage.read_bytes("https://data.example/x", access=Access(("data.example",), retry_s=0.3))


@pytest.mark.parametrize(
    "uri", ["https://host/x.csv", "https://host:8443/x.csv", "https://sub.example.org/x"]
)
def test_host_that_is_not_on_the_list_is_rejected_before_anything_is_asked(uri: str) -> None:
    with pytest.raises(PermissionRefused, match="is not one that may be read") as caught:
        storage.list_files(
            uri, access=Access(hosts=("example.org", "host:443")[: 1 if "8443" not in uri else 2])
        )
    assert caught.value.code == 50


@pytest.mark.covers("B16")
@pytest.mark.parametrize(
    "uri",
    [
        "http://169.254.169.254/latest",
        "https://169.254.169.254/x",
        "https://metadata.google.internal/x",
        "http://metadata.google.internal/x",
        "https://localhost/x",
        "http://127.0.0.1/x",
        "https://[::1]/x",
        "https://[fd00:ec2::254]/x",
        "https://[::ffff:169.254.169.254]/x",
        "https://0.0.0.0/x",
    ],
)
def test_addresses_of_machines_and_clouds_are_rejected_even_when_listed(uri: str) -> None:
    host = uri.split("/")[2].strip("[]")
    with pytest.raises(PermissionRefused, match="leads to") as caught:
        storage.list_files(uri, access=Access(hosts=(host, f"[{host}]")))
    assert caught.value.code == 50


@pytest.mark.covers("A4")
@pytest.mark.parametrize(
    ("found", "hosts", "said"),
    [
        (["93.184.216.34", "127.0.0.1"], (), "this machine"),
        (["169.254.1.1"], (), "link-local"),
        (["169.254.169.254"], ("169.254.169.254",), "metadata"),
        (["100.100.100.200"], ("100.100.100.200",), "metadata"),
        (["::ffff:127.0.0.1"], (), "this machine"),
        (["64:ff9b::a9fe:a9fe"], (), "metadata"),
        (["2002:7f00:1::"], (), "this machine"),
        (["fe80::1"], (), "link-local"),
        (["10.1.2.3"], (), "private address 10.1.2.3"),
        (["10.1.2.3", "10.1.2.4"], ("10.1.2.3",), "private address 10.1.2.4"),
        (["224.0.0.1"], (), "multicast"),
        (["0.0.0.0"], (), "this machine"),  # noqa: S104
    ],
)
def test_every_address_of_a_name_is_checked(
    monkeypatch: pytest.MonkeyPatch, found: list[str], hosts: tuple[str, ...], said: str
) -> None:
    names(monkeypatch, {"data.example": found})
    with pytest.raises(PermissionRefused, match=said):
        addresses("data.example", 443, Access(("data.example", *hosts)))


def test_private_address_is_reached_where_it_is_listed_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, {"data.example": ["10.1.2.3"]})
    assert addresses("data.example", 443, Access(("data.example", "10.1.2.3"))) == [("10.1.2.3", 443)]


def names(
    patch: pytest.MonkeyPatch, known: dict[str, list[str]], then: dict[str, list[str]] | None = None
) -> list[str]:
    """Answer for names as a server of names would; returns the names that were asked for."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def answer(host: str, port: int, *args: object, **settings: object) -> list[object]:
        if host.replace(".", "").isdigit():
            return real(host, port, type=socket.SOCK_STREAM)  # type: ignore[return-value]
        asked.append(host)
        found = (then if then is not None and asked.count(host) > 1 else known).get(host)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    patch.setattr(socket, "getaddrinfo", answer)
    return asked
