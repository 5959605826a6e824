"""Secrets are refused where they are given, and said by nobody."""

import json
import logging

import pytest

from tests.storage.faults import Answer
from tests.storage.stores import PLANTED, Bucket, Site
from trainwright import storage
from trainwright.errors import InputError, TrainwrightError, as_record

CARRYING = [
    f"https://me:{PLANTED}@host/x.csv",
    f"https://{PLANTED}@host/x.csv",
    f"https://me:a/{PLANTED}@host/x.csv",
    f"s3://AKIAX:{PLANTED}@bucket/x.csv",
    f"s3://AKIAX:ab/cd+{PLANTED}@bucket/x.csv",
    f"gs://{PLANTED}@bucket/x.csv",
    f"file://me:{PLANTED}@host/x.csv",
    f"https://host/x.csv?X-Amz-Signature={PLANTED}&X-Amz-Date=1",
    f"https://host/x.csv?a=1&x-goog-signature={PLANTED}",
    f"https://host/x.csv?sv=2020&sig={PLANTED}",
    f"https://host/x.csv?token={PLANTED}",
    f"https://host/x.csv?access_token={PLANTED}#here",
    f"https://host/x.csv?api_key={PLANTED}",
    f"ftp://me:{PLANTED}@host/x.csv",
    f"postgresql://me:{PLANTED}@host/db",
]


@pytest.mark.parametrize("uri", CARRYING)
def test_credentials_in_a_uri_are_refused_and_not_repeated(uri: str) -> None:
    for look in (
        storage.list_files,
        storage.open_file,
        storage.take_listing,
        storage.local_path,
        storage.head,
    ):
        with pytest.raises(InputError, match="carries a") as caught:
            look(uri)
        assert PLANTED not in str(caught.value) + repr(caught.value) + json.dumps(
            as_record(caught.value, "x")
        )
    assert PLANTED not in storage.redacted(f"could not read {uri}: no")


@pytest.mark.parametrize(
    "text",
    ["gs://bucket/a@b.csv", "https://host:8080/a@b", "s3://b/key=3/x", "https://host/x?page=2", "a@b.csv"],
)
def test_what_is_no_secret_is_not_hidden(text: str) -> None:
    assert storage.redacted(text) == text


def test_no_error_log_or_listing_says_the_key_that_it_is_done_with(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "trainwright")
    bucket.put("a.csv", b"one")
    said = [repr(storage.take_listing(bucket.uri)), repr(storage.create(f"{bucket.uri}/b.csv", b"x"))]
    for status in (400, 401, 403, 503):
        bucket.proxy.plan(Answer(status, {}, PLANTED.encode()[:0]), times=9)
        with pytest.raises(TrainwrightError) as caught:
            storage.list_files(bucket.uri, access=storage.Access(retry_s=0.2))
        said += [str(caught.value), repr(caught.value), json.dumps(as_record(caught.value, "x"))]
        bucket.proxy.clear()
    out = capfd.readouterr()
    assert PLANTED not in "\n".join([*said, *caplog.messages, out.out, out.err])


def test_a_redirect_to_a_signed_address_is_followed_and_its_signature_said_by_nobody(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trainwright")
    signed = f"{site.uri}/y.csv?X-Amz-Signature={PLANTED}"
    site.web.redirects["/x.csv"] = signed
    site.web.put("/y.csv", b"one", '"1"')
    listing = storage.take_listing(f"{site.uri}/x.csv", site.access)
    site.proxy.plan(Answer(503), part="/y.csv", times=99)
    with pytest.raises(TrainwrightError) as caught:
        storage.read_bytes(f"{site.uri}/x.csv", access=storage.Access(site.access.hosts, True, 0.2))
    assert PLANTED not in repr(listing) + str(caught.value) + repr(caught.value) + "".join(caplog.messages)
