"""Whole downloads by the real program: shared, bounded, taken up again, and left in place."""

from __future__ import annotations

import fcntl
import io
import json
import os
import random
import signal
import tarfile
import threading
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from capyctl.checkpoints import downloads_source
from capyctl.checkpoints.digest import LocalCheckpoints
from capyctl.checkpoints.sources import FetchPolicy, RemoteSources
from capyctl.checkpoints.sources_layout import Place
from capyctl.checkpoints.sources_space import Space
from capyctl.contracts.checkpoints import Unfetchable
from capyctl.domain.checkpoints import RemoteSource, SourceKind
from capyctl.domain.units import GIB, MIB
from tests.checkpoints.fake_hub import COMMIT, FakeHub, serving, sha256
from tests.checkpoints.test_digest import recomputed

pytestmark = pytest.mark.slow

WEIGHTS = random.Random(2).randbytes(2 * MIB)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "sub/vocab.txt": b"v" * 2000}
TOTAL = sum(map(len, FILES.values()))
HUB_KEY = f"sources/huggingface/Own--Model@{COMMIT}"


@pytest.fixture
def hub():
    with serving(FakeHub(repositories={"Own/Model": dict(FILES)}, files={"/m.gguf": WEIGHTS})) as h:
        yield h


@pytest.fixture
def root(tmp_path):
    return tmp_path / "models"


def store(hub, root, **changes):
    space = {"max_bytes": GIB, "free_bytes": lambda _: 100 * GIB}
    space |= {name: changes.pop(name) for name in tuple(space) if name in changes}
    policy = attrs.evolve(
        FetchPolicy(endpoint=hub.url, plain_http=True), **changes.pop("policy", {})
    )
    return RemoteSources(
        space=Space(root=root, **space),
        policy=policy,
        secrets=root.parent / "secrets",
        pauses_s=(0.0,),
        **changes,
    )


def commit(**changes):
    made = RemoteSource(
        kind=SourceKind.HUGGINGFACE, key=HUB_KEY, repository="Own/Model", commit=COMMIT
    )
    return attrs.evolve(made, **changes)


def address(hub, data=WEIGHTS, path="/m.gguf", **changes):
    tar = "-tar" if changes.get("archive") else ""
    made = RemoteSource(
        kind=SourceKind.HTTP,
        key=f"sources/http/{sha256(data)}{tar}",
        url=hub.url + path,
        sha256=sha256(data),
    )
    return attrs.evolve(made, **changes)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not path.is_dir()
    }


def nothing(bytes_done, bytes_total):
    pass


async def failure(sources, source) -> Unfetchable:
    with pytest.raises(Unfetchable) as failed:
        await sources.fetch(source, nothing)
    return failed.value


def children() -> set[int]:
    """Download programs that live under this process."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
            if mine and b"downloads_program" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


async def until(check):
    with trio.fail_after(20):
        while not check():  # noqa: ASYNC110 - what another process did has no event here
            await trio.sleep(0.01)


async def test_a_commit_comes_whole_as_plain_files_with_known_digests(hub, root):
    checkpoints = LocalCheckpoints()
    sources = store(hub, root, learn=checkpoints.learn)
    told = []

    size = await sources.fetch(commit(), lambda done, total: told.append((done, total)))

    assert size == TOTAL
    assert contents(root / HUB_KEY) == FILES
    assert {path.name for path in (root / HUB_KEY).parent.iterdir()} == {
        f"Own--Model@{COMMIT}",
        f"Own--Model@{COMMIT}.manifest",
    }
    assert (root / f"{HUB_KEY}.manifest").stat().st_mode & 0o777 == 0o600
    assert told
    assert {total for _, total in told} == {TOTAL}
    facts = await checkpoints.measure(str(root / HUB_KEY))
    assert facts.digest == recomputed(FILES)
    assert facts.provenance == "fetched"
    assert checkpoints.hashed_bytes == 0


async def test_what_is_there_needs_no_network_and_no_permission(hub, root):
    await store(hub, root).fetch(commit(), nothing)
    hub.asked.clear()

    offline = store(hub, root, policy={"huggingface": False})
    assert await offline.fetch(commit(), nothing) == TOTAL
    assert hub.asked == []


async def test_files_copied_from_another_machine_are_verified_without_network(hub, root, tmp_path):
    import shutil

    await store(hub, root).fetch(commit(), nothing)
    hub.asked.clear()
    shutil.copytree(root, tmp_path / "copied")

    copied = store(hub, tmp_path / "copied")
    assert await copied.fetch(commit(), nothing) == TOTAL
    assert hub.asked == []


@pytest.mark.parametrize("harm", ["changed", "gone", "manifest"])
async def test_what_was_harmed_in_place_is_mended_there(hub, root, harm):
    await store(hub, root).fetch(commit(), nothing)
    hub.asked.clear()
    if harm == "changed":
        (root / HUB_KEY / "model.safetensors").write_bytes(bytes(len(WEIGHTS)))
    elif harm == "gone":
        (root / HUB_KEY / "model.safetensors").unlink()
    else:
        (root / f"{HUB_KEY}.manifest").unlink()
    (root / HUB_KEY / "notes.txt").write_text("mine")

    assert await store(hub, root).fetch(commit(), nothing) == TOTAL

    assert contents(root / HUB_KEY) == {**FILES, "notes.txt": b"mine"}
    fetched = [path for path in hub.paths() if "resolve" in path]
    assert len(fetched) == (0 if harm == "manifest" else 1)


async def test_patterns_fetch_only_what_they_name(hub, root):
    key = f"{HUB_KEY}-abc"

    await store(hub, root).fetch(commit(key=key, files=("*.json", "sub/")), nothing)

    assert contents(root / key).keys() == {"config.json", "sub/vocab.txt"}


async def test_an_address_comes_under_its_own_name(hub, root):
    source = address(hub)

    await store(hub, root).fetch(source, nothing)

    assert contents(root / source.key) == {"m.gguf": WEIGHTS}


async def test_an_archive_is_taken_apart_and_not_kept(hub, root):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in FILES.items():
            info = tarfile.TarInfo(f"model/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    data = packed.getvalue()
    hub.files["/m.tar"] = data
    source = address(hub, data, "/m.tar", archive=True)

    assert await store(hub, root).fetch(source, nothing) == TOTAL

    assert contents(root / source.key) == FILES
    assert {path.suffix for path in (root / source.key).parent.iterdir()} == {"", ".manifest"}


async def test_callers_of_one_source_share_its_download(hub, root):
    sources = store(hub, root)
    hold = hub.fail("model.safetensors", hold=threading.Event()).hold
    sizes = []

    async def one():
        told = []
        sizes.append(await sources.fetch(commit(), lambda *figures: told.append(figures)))
        assert told

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await until(lambda: len(hub.paths()) >= 4)
            assert len(children()) == 1
            hold.set()

    assert sizes == [TOTAL] * 3
    assert len([path for path in hub.paths() if "resolve" in path]) == len(FILES)


async def test_when_the_first_caller_goes_another_goes_on(hub, root):
    sources = store(hub, root)
    hub.fail("model.safetensors", hold=threading.Event())
    first = trio.CancelScope()
    partial = Place(root, HUB_KEY).partial / "model.safetensors"

    async def leader():
        with first:
            await sources.fetch(commit(), nothing)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leader)
            await until(lambda: partial.exists() and partial.stat().st_size == MIB)
            nursery.start_soon(sources.fetch, commit(), nothing)
            await trio.testing.wait_all_tasks_blocked()
            first.cancel()

    assert contents(root / HUB_KEY) == FILES
    asked = [a for a in hub.asked if a.path.endswith("model.safetensors")]
    assert [a.headers["Range"] for a in asked] == ["bytes=0-", f"bytes={MIB}-"]


async def test_a_failure_is_everybodys_and_costs_one_download(hub, root):
    sources = store(hub, root)
    hold = hub.fail("m.gguf", hold=threading.Event(), body=bytes(len(WEIGHTS))).hold
    hub.fail("m.gguf", times=99, body=bytes(len(WEIGHTS)))
    failures = []

    async def one():
        failures.append(await failure(sources, address(hub)))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await until(lambda: len(hub.paths()) == 1)
            hold.set()

    assert [f.reason for f in failures] == ["checksum_mismatch"] * 3
    assert len(hub.paths()) == 2


async def test_two_sources_come_at_a_time(hub, root):
    holds = []
    for number in range(3):
        data = WEIGHTS + bytes([number])
        hub.files[f"/{number}.gguf"] = data
        holds.append(hub.fail(f"/{number}.gguf", hold=threading.Event()).hold)
    sources = store(hub, root)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(3):
                data = hub.files[f"/{number}.gguf"]
                source = address(hub, data, f"/{number}.gguf")
                nursery.start_soon(sources.fetch, source, nothing)
            await until(lambda: len(hub.paths()) == 2)
            assert len(children()) == 2
            for hold in holds:
                hold.set()

    assert len(hub.paths()) == 3


async def test_cancelling_ends_the_program_and_keeps_what_came(hub, root):
    hub.fail("m.gguf", hold=threading.Event())
    source = address(hub)
    partial = Place(root, source.key).partial / "m.gguf"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store(hub, root).fetch, source, nothing)
        await until(lambda: partial.exists() and partial.stat().st_size == MIB)
        nursery.cancel_scope.cancel()

    assert children() == set()
    assert partial.stat().st_size == MIB
    await store(hub, root).fetch(source, nothing)
    assert hub.asked[1].headers["Range"] == f"bytes={MIB}-"


async def test_a_program_that_is_killed_was_interrupted(hub, root):
    hub.fail("m.gguf", hold=threading.Event())
    failures = []

    async def one():
        failures.append(await failure(store(hub, root), address(hub)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        await until(lambda: len(hub.paths()) == 1)
        for pid in children():
            os.kill(pid, signal.SIGKILL)

    assert [(f.reason, f.terminal) for f in failures] == [("interrupted", False)]


@pytest.mark.parametrize(
    ("changes", "reason", "terminal", "words"),
    [
        ({"max_bytes": MIB}, "too_large", True, "model_sources.max_bytes"),
        ({"free_bytes": lambda _: GIB + MIB}, "insufficient_space", False, "1.0 GiB stay so"),
    ],
)
async def test_nothing_is_fetched_without_room(hub, root, changes, reason, terminal, words):
    for source in (commit(), address(hub)):
        failed = await failure(store(hub, root, **changes), source)

        assert (failed.reason, failed.terminal) == (reason, terminal)
        assert words in failed.detail
    assert not any("resolve" in path for path in hub.paths())
    assert not (root / HUB_KEY).exists()


async def test_the_cap_is_on_all_downloads_together(hub, root):
    earlier = root / "sources/http/earlier/w.bin"
    earlier.parent.mkdir(parents=True)
    earlier.write_bytes(bytes(MIB))

    failed = await failure(store(hub, root, max_bytes=TOTAL + MIB - 1), commit())
    assert failed.reason == "too_large"
    assert await store(hub, root, max_bytes=TOTAL + MIB).fetch(commit(), nothing) == TOTAL


async def test_downloads_under_way_hold_their_room(hub, root):
    hold = hub.fail("m.gguf", hold=threading.Event()).hold
    sources = store(hub, root, max_bytes=TOTAL + len(WEIGHTS) - 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sources.fetch, address(hub), nothing)
        await until(lambda: len(hub.paths()) == 1)
        failed = await failure(sources, commit())
        hold.set()

    assert failed.reason == "too_large"


async def test_a_size_that_nobody_states_is_bounded_as_it_comes(hub, root):
    hub.without_lengths = True

    failed = await failure(store(hub, root, max_bytes=MIB), address(hub))

    assert failed.reason == "too_large"


async def test_secrets_are_read_and_never_shown(hub, root, tmp_path):
    folder = tmp_path / "secrets"
    folder.mkdir(0o700)
    for name, text in (("token", "hf_secret"), ("place", hub.url + "/m.gguf?sig=hush")):
        (folder / name).touch(0o600)
        (folder / name).write_text(text)
    hub.token = "hf_secret"
    sources = store(hub, root)

    await sources.fetch(commit(token_ref="secret://token"), nothing)
    hub.fail("m.gguf", times=9, status=404)
    failed = await failure(sources, address(hub, url=None, url_ref="secret://place"))

    assert failed.reason == "not_found"
    assert "secret://place" in failed.detail
    assert "hush" not in str(failed)
    assert hub.url not in str(failed)
    hub.faults.clear()
    await sources.fetch(address(hub, url=None, url_ref="secret://place"), nothing)
    manifests = [path.read_text() for path in root.rglob("*.manifest")]
    assert len(manifests) == 2
    assert not any("hush" in text or "hf_secret" in text for text in manifests)


@pytest.mark.parametrize("where", ["file", "environment", "nowhere"])
async def test_the_hosts_token_is_used_when_the_document_names_none(hub, root, tmp_path, where):
    hub.token = "hf_secret"
    token_file = tmp_path / "token"
    token_file.touch(0o600)
    token_file.write_text("hf_secret\n")
    policy = {"token_file": token_file} if where == "file" else {}
    environ = {"HF_TOKEN": "hf_secret"} if where == "environment" else {}
    sources = store(hub, root, policy=policy, environ=environ)

    if where == "nowhere":
        failed = await failure(sources, commit())
        assert (failed.reason, failed.terminal, failed.again) == ("unauthorized", True, True)
    else:
        assert await sources.fetch(commit(), nothing) == TOTAL


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "secret_unavailable"),
        ("no address", "secret_unavailable"),
        ("https://b.example/", "denied"),
    ],
)
async def test_a_secret_address_keeps_to_the_rules(hub, root, tmp_path, content, reason):
    (tmp_path / "secrets").mkdir(0o700)
    if content is not None:
        (tmp_path / "secrets/place").touch(0o600)
        (tmp_path / "secrets/place").write_text(content)
    sources = store(hub, root, policy={"allowed_hosts": ("a.example",)})

    failed = await failure(sources, address(hub, url=None, url_ref="secret://place"))

    assert (failed.reason, failed.terminal) == (reason, True)
    assert "b.example" not in failed.detail


@pytest.mark.parametrize("kind", ["huggingface", "http"])
async def test_what_the_host_turned_off_meanwhile_is_denied(hub, root, kind):
    source = commit() if kind == "huggingface" else address(hub)

    failed = await failure(store(hub, root, policy={kind: False}), source)

    assert (failed.reason, failed.again) == ("denied", False)
    assert hub.asked == []


async def test_a_folder_that_cannot_be_written_is_said(hub, tmp_path):
    (tmp_path / "file").touch()

    failed = await failure(store(hub, tmp_path / "file" / "models"), commit())

    assert (failed.reason, failed.terminal) == ("io_error", False)


def test_a_download_that_is_being_put_in_place_is_not_begun_again(tmp_path, monkeypatch):
    """What comes is renamed to where it belongs before its manifest is complete."""
    monkeypatch.setattr(downloads_source, "LOCK_S_MAX", 0.0)
    place = Place(tmp_path, "key")
    place.folder.mkdir()
    other = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(Unfetchable, match="another capyctl is downloading key"):
            downloads_source.fetch(downloads_source.Request(root=str(tmp_path), key="key"), None)
    finally:
        os.close(other)


async def test_two_daemons_do_not_write_the_same_download(hub, root):
    """The program holds a lock on the directory: another one waits, then finds all done."""
    hold = hub.fail("m.gguf", hold=threading.Event()).hold

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(store(hub, root).fetch, address(hub), nothing)
            await until(lambda: len(hub.paths()) == 1)
            hold.set()

    assert len(hub.paths()) == 1
    manifest = json.loads(next(root.rglob("*.manifest")).read_text())
    assert manifest["complete"] is True
