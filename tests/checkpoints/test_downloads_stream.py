"""One file over HTTP: whole, verified, within the rules, and going on where it was cut."""

from __future__ import annotations

import errno
import io
import random
import urllib.request

import pytest

from capyctl.checkpoints.downloads_stream import (
    FileDownload,
    Redirects,
    Remote,
    Rules,
    check_address,
    not_written,
)
from capyctl.checkpoints.sources_layout import FetchedFile
from capyctl.contracts.checkpoints import Unfetchable
from tests.checkpoints.fake_hub import FakeHub, git_sha1, serving, sha256
from tests.checkpoints.test_digest import MIB, file_digest

DATA = random.Random(1).randbytes(3 * MIB + 17)
LOOPBACK = Rules(plain_loopback=True)


@pytest.fixture
def hub():
    with serving(FakeHub(files={"/m.bin": DATA, "/empty": b""})) as made:
        yield made


@pytest.fixture
def target(tmp_path):
    return tmp_path / "m.bin"


def download(hub, target, data=DATA, path="/m.bin", **changes):
    wanted = {"name": "m.bin", "size_bytes": len(data), "sha256": sha256(data)}
    wanted |= changes.pop("wanted", {})
    counted = []
    remote = Remote(
        url=hub.url + path,
        called="the server",
        token=changes.pop("token", None),
        rules=changes.pop("rules", LOOPBACK),
    )
    made = FileDownload(
        remote=remote,
        wanted=FetchedFile(**wanted),
        path=target,
        got=counted.append,
        pauses_s=changes.pop("pauses_s", (0.0, 0.0)),
        **changes,
    )
    found = made.run()
    assert sum(counted) == len(target.read_bytes())
    return found


def failure(hub, target, *args, **changes) -> Unfetchable:
    with pytest.raises(Unfetchable) as failed:
        download(hub, target, *args, **changes)
    return failed.value


@pytest.mark.parametrize(
    "wanted", [{}, {"size_bytes": None}, {"sha256": None, "git_sha1": git_sha1(DATA)}]
)
def test_a_file_comes_whole_with_its_digest(hub, target, wanted):
    found = download(hub, target, wanted=wanted)

    assert target.read_bytes() == DATA
    assert (found.size_bytes, found.sha256) == (len(DATA), sha256(DATA))
    assert found.digest == file_digest(DATA)
    assert found.is_at(target, untouched=True)


def test_an_empty_file_comes_too(hub, target):
    found = download(hub, target, data=b"", path="/empty")

    assert target.read_bytes() == b""
    assert found.sha256 == sha256(b"")


def test_cuts_cost_only_what_was_not_sent_yet(hub, target):
    hub.fail("m.bin", times=5, cut_after=MIB // 2)

    download(hub, target)

    starts = [asked.headers["Range"] for asked in hub.asked]
    assert target.read_bytes() == DATA
    assert starts == [f"bytes={n * MIB // 2}-" for n in range(6)]


def test_what_an_earlier_process_wrote_is_taken_up(hub, target):
    target.write_bytes(DATA[:MIB])

    download(hub, target)

    assert target.read_bytes() == DATA
    assert [asked.headers["Range"] for asked in hub.asked] == [f"bytes={MIB}-"]


def test_what_is_whole_already_is_not_asked_for(hub, target):
    target.write_bytes(DATA)

    assert download(hub, target).sha256 == sha256(DATA)
    assert hub.asked == []


@pytest.mark.parametrize("found", ["other", "longer"])
def test_a_wrong_beginning_is_given_up(hub, target, found):
    target.write_bytes(b"x" * MIB if found == "other" else DATA + b"x")

    download(hub, target)

    assert target.read_bytes() == DATA


def test_a_server_that_knows_no_ranges_sends_all_again(hub, target):
    target.write_bytes(DATA[:MIB])
    hub.fail("m.bin", ignores_range=True)

    download(hub, target)

    assert target.read_bytes() == DATA


def test_without_a_length_the_hash_tells_the_end(hub, target):
    hub.without_lengths = True

    found = download(hub, target, wanted={"size_bytes": None})

    assert found.size_bytes == len(DATA)


def test_other_bytes_are_fetched_once_more_and_then_refused(hub, target):
    other = bytes(len(DATA))
    hub.fail("m.bin", times=2, body=other)

    failed = failure(hub, target)

    assert (failed.reason, failed.terminal, failed.again) == ("checksum_mismatch", True, False)
    assert len(hub.asked) == 2
    assert not target.exists()


def test_bytes_that_were_wrong_once_are_forgiven(hub, target):
    hub.fail("m.bin", body=bytes(len(DATA)))

    download(hub, target)

    assert target.read_bytes() == DATA


@pytest.mark.parametrize("length", [True, False])
def test_more_bytes_than_stated_are_refused(hub, target, length):
    hub.without_lengths = not length
    hub.fail("m.bin", times=9, body=DATA + b"x")

    assert failure(hub, target).reason == "checksum_mismatch"


@pytest.mark.parametrize(
    ("status", "reason", "terminal"),
    [
        (401, "unauthorized", True),
        (403, "unauthorized", True),
        (404, "not_found", True),
        (410, "not_found", True),
        (400, "unreachable", True),
        (429, "unreachable", False),
        (500, "unreachable", False),
        (503, "unreachable", False),
    ],
)
def test_what_a_status_comes_to(hub, target, status, reason, terminal):
    hub.fail("m.bin", times=9, status=status)

    failed = failure(hub, target)

    assert (failed.reason, failed.terminal) == (reason, terminal)
    assert str(status) in failed.detail
    assert len(hub.asked) == (1 if terminal else 3)


def test_a_busy_server_is_asked_again(hub, target):
    hub.fail("m.bin", times=2, status=503)

    download(hub, target)

    assert target.read_bytes() == DATA


def test_a_compressed_answer_is_not_taken(hub, target):
    hub.fail("m.bin", times=9, encoding="gzip")

    assert "compressed" in failure(hub, target).detail


def test_nobody_listening_is_said_without_the_address(tmp_path, target, hub):
    hub.port = 9  # discard; nobody serves it

    failed = failure(hub, target)

    assert failed.reason == "unreachable"
    assert "127.0.0.1" not in str(failed)


def test_no_more_comes_than_there_is_room_for(hub, target):
    failed = failure(hub, target, wanted={"size_bytes": None}, sized=lambda size: 2 * MIB)

    assert failed.reason == "too_large"
    assert target.stat().st_size <= 2 * MIB


def test_a_token_stays_with_the_host_it_is_for(hub, target):
    hub.fail("m.bin", location=hub.foreign_url + "/m.bin")

    download(hub, target, token="hf_secret")

    first, second = hub.asked
    assert first.headers["Authorization"] == "Bearer hf_secret"
    assert "Authorization" not in second.headers


def test_a_token_follows_a_redirect_on_its_host(hub, target):
    hub.files["/moved"] = DATA
    hub.fail("m.bin", location="/moved")

    download(hub, target, token="hf_secret")

    assert hub.asked[1].headers["Authorization"] == "Bearer hf_secret"


@pytest.mark.parametrize("place", ["http://files.example/x", "ftp://files.example/x", "file:///x"])
def test_redirects_lead_only_where_downloads_may_go(hub, target, place):
    hub.fail("m.bin", location=place)

    failed = failure(hub, target)

    assert (failed.reason, failed.again) == ("denied", False)
    assert "files.example" not in failed.detail


def test_a_redirect_to_a_host_that_is_not_listed_is_denied(hub, target):
    hub.fail("m.bin", location=hub.foreign_url + "/m.bin")

    rules = Rules(plain_loopback=True, allowed_hosts=("127.0.0.1",))
    failed = failure(hub, target, rules=rules)

    assert failed.reason == "denied"
    assert "allowed_hosts" in failed.detail


def test_redirects_end(hub, target):
    hub.fail("m.bin", times=99, location="/m.bin")

    assert failure(hub, target).reason == "denied"
    assert len(hub.asked) < 20


@pytest.mark.parametrize(
    ("url", "rules", "secured", "may"),
    [
        ("https://a.example/x", Rules(), False, True),
        ("https://a.example/x", Rules(), True, True),
        ("http://a.example/x", Rules(), False, False),
        ("http://a.example/x", Rules(plain_http=True), False, True),
        ("http://a.example/x", Rules(plain_http=True), True, False),
        ("http://127.0.0.1/x", Rules(), False, False),
        ("http://127.0.0.1/x", Rules(plain_loopback=True), False, True),
        ("http://[::1]/x", Rules(plain_loopback=True), False, True),
        ("http://10.0.0.1/x", Rules(plain_loopback=True), False, False),
        ("https://a.example/x", Rules(allowed_hosts=("b.example",)), False, False),
        ("file:///etc/passwd", Rules(plain_http=True), False, False),
        ("https:///x", Rules(), False, False),
    ],
)
def test_addresses_within_the_rules(url, rules, secured, may):
    if may:
        check_address(url, rules, "it", secured=secured)
        return
    with pytest.raises(Unfetchable, match="denied"):
        check_address(url, rules, "it", secured=secured)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "insufficient_space"),
        (errno.EDQUOT, "insufficient_space"),
        (errno.EACCES, "io_error"),
    ],
)
def test_what_a_failed_write_comes_to(tmp_path, number, reason):
    assert not_written(OSError(number, "text"), tmp_path / "x").reason == reason


def test_a_target_that_cannot_be_written_fails_at_once(hub, tmp_path):
    assert failure(hub, tmp_path / "absent" / "m.bin").reason == "io_error"
    assert len(hub.asked) == 1


def test_a_redirect_never_leads_from_https_down_to_http():
    remote = Remote(url="https://a.example/x", called="it", rules=Rules(plain_http=True))
    asked = urllib.request.Request(remote.url)
    answer = io.BytesIO()

    with pytest.raises(Unfetchable, match="down to http"):
        redirected(remote, asked, answer, "http://a.example/x")
    assert answer.closed
    followed = redirected(remote, asked, io.BytesIO(), "https://b.example/x")
    assert followed.full_url == "https://b.example/x"


def redirected(remote, asked, answer, place):
    return Redirects(remote).redirect_request(asked, answer, 302, "Found", {}, place)
