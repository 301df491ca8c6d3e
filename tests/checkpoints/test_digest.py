import hashlib
import os
import socket

import pytest
import trio

from capyctl.checkpoints import segments
from capyctl.checkpoints.digest import LocalCheckpoints
from capyctl.contracts.checkpoints import Unmeasurable
from capyctl.domain.units import GIB, MIB
from capyctl.simulated.checkpoint_writer import write_checkpoint


def file_digest(content: bytes) -> str:
    pieces = [content[at : at + 64 * MIB] for at in range(0, len(content), 64 * MIB)]
    return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()


def recomputed(files: dict[str, bytes]) -> str:
    """The digest as the documentation tells to recompute it."""
    lines = [
        f"{name}\0{len(files[name])}\0{file_digest(files[name])}\n".encode()
        for name in sorted(files, key=os.fsencode)
    ]
    return "sha256:" + hashlib.sha256(b"".join(lines)).hexdigest()


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.fixture
def settled(monkeypatch):
    """As if the files had been still for long: one that was just written is not remembered."""
    monkeypatch.setattr("capyctl.checkpoints.digest_cache.SETTLED_NS", 0)


async def test_the_digest_is_the_documented_one(tmp_path):
    files = {"config.json": b"{}", "a/b.bin": b"x" * 1_000, "a.bin": b"", "ä": b"1"}
    write(tmp_path, files)

    facts = await LocalCheckpoints().measure(str(tmp_path))

    assert facts.digest == recomputed(files)
    assert [row[0] for row in facts.stat_identity] == ["a.bin", "a/b.bin", "config.json", "ä"]
    assert facts.stat_identity[1][3] == 1_000


@pytest.mark.slow
async def test_segments_and_holes_make_no_difference(tmp_path):
    """Data in the first and third segment, a hole between, a last segment that is short."""
    with (tmp_path / "w.bin").open("wb") as file:
        file.write(b"begin")
        file.seek(2 * 64 * MIB + 7)
        file.write(b"end")
        file.truncate(3 * 64 * MIB + 5)
    checkpoints = LocalCheckpoints()

    facts = await checkpoints.measure(str(tmp_path))

    assert facts.digest == recomputed({"w.bin": (tmp_path / "w.bin").read_bytes()})
    assert checkpoints.hashed_bytes <= 2 * 64 * MIB


@pytest.mark.slow
async def test_a_sparse_giant_takes_no_time(tmp_path):
    model = write_checkpoint(tmp_path / "m", weights_bytes=400 * GIB, format="gguf")
    checkpoints = LocalCheckpoints()

    with trio.fail_after(5):
        facts = await checkpoints.measure(str(model))

    assert facts.weights_bytes == 400 * GIB
    assert checkpoints.hashed_bytes <= 64 * MIB


@pytest.mark.parametrize("change", ["content", "name", "more"])
async def test_any_change_changes_the_digest(tmp_path, change):
    write(tmp_path, {"a": b"1", "b": b"2"})
    before = (await LocalCheckpoints().measure(str(tmp_path))).digest
    if change == "content":
        write(tmp_path, {"a": b"3"})
    elif change == "name":
        (tmp_path / "b").rename(tmp_path / "c")
    else:
        write(tmp_path, {"c": b""})

    assert (await LocalCheckpoints().measure(str(tmp_path))).digest != before


async def test_links_inside_the_root_count_as_their_file(tmp_path):
    write(tmp_path, {"blobs/x": b"weights"})
    (tmp_path / "model.bin").symlink_to("hop")
    (tmp_path / "hop").symlink_to("blobs/x")

    facts = await LocalCheckpoints().measure(str(tmp_path))

    content = b"weights"
    assert facts.digest == recomputed({"blobs/x": content, "model.bin": content, "hop": content})


async def test_eight_hops_are_followed_and_nine_are_not(tmp_path):
    write(tmp_path, {"0": b"end"})
    for hop in range(1, 9):
        (tmp_path / f"{hop}").symlink_to(f"{hop - 1}")
    await LocalCheckpoints().measure(str(tmp_path))
    (tmp_path / "9").symlink_to("8")

    with pytest.raises(Unmeasurable, match="more than 8 links") as refused:
        await LocalCheckpoints().measure(str(tmp_path))
    assert refused.value.diagnostic == "unsafe_file"


@pytest.mark.parametrize(
    "kind", ["outside", "absolute", "through", "dangling", "loop", "folder", "pipe", "socket"]
)
async def test_what_is_not_a_file_of_the_root_is_unsafe(tmp_path, kind):
    root = tmp_path / "root"
    write(tmp_path, {"root/a/b": b"1", "secret": b"2"})
    odd = root / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(odd))
    else:
        odd.symlink_to(
            {
                "outside": "../secret",
                "absolute": str(tmp_path / "secret"),
                "through": "a/../../secret",
                "dangling": "absent",
                "loop": "odd",
                "folder": "a",
            }[kind]
        )

    with pytest.raises(Unmeasurable, match="odd") as refused:
        await LocalCheckpoints().measure(str(root))
    assert refused.value.diagnostic == "unsafe_file"


async def test_a_root_may_be_a_link_itself(tmp_path):
    write(tmp_path, {"real/a": b"1"})
    (tmp_path / "link").symlink_to("real")

    assert (await LocalCheckpoints().measure(str(tmp_path / "link"))).digest == recomputed(
        {"a": b"1"}
    )


@pytest.mark.parametrize("name", ["absent", "empty", "pipe"])
async def test_a_root_that_is_none(tmp_path, name):
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(Unmeasurable) as refused:
        await LocalCheckpoints().measure(str(tmp_path / name))
    assert refused.value.diagnostic == "invalid_root"


async def test_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr("capyctl.checkpoints.model_files.FILES_MAX", 2)
    write(tmp_path, {"a": b"", "b": b"", "c": b""})

    with pytest.raises(Unmeasurable, match="more than 2 entries") as refused:
        await LocalCheckpoints().measure(str(tmp_path))
    assert refused.value.diagnostic == "too_large"


@pytest.mark.parametrize("change", ["write", "replace", "remove", "add"])
async def test_a_change_while_it_is_measured_is_seen(tmp_path, monkeypatch, change):
    """The change comes after the last byte was hashed, when only looking again can tell."""
    write(tmp_path, {"a": b"1", "b": b"2"})
    real = segments.check_same

    def changed_before_the_last_look(files):
        if change == "write":
            (tmp_path / "a").write_bytes(b"3")
        elif change == "replace":
            (tmp_path / "new").write_bytes(b"1")
            (tmp_path / "new").rename(tmp_path / "a")
        elif change == "remove":
            (tmp_path / "a").unlink()
        else:
            (tmp_path / "c").write_bytes(b"")
        real(files)

    monkeypatch.setattr(segments, "check_same", changed_before_the_last_look)

    with pytest.raises(Unmeasurable) as refused:
        await LocalCheckpoints().measure(str(tmp_path))
    assert refused.value.diagnostic == "changed"


def test_a_file_replaced_by_a_pipe_is_a_change_and_no_hang(tmp_path):
    from capyctl.checkpoints.model_files import find_files

    write(tmp_path, {"a": b"1"})
    (file,) = find_files(str(tmp_path)).files
    (tmp_path / "a").unlink()
    os.mkfifo(tmp_path / "a")

    with pytest.raises(Unmeasurable) as refused:
        segments.hash_segment(file, 0)
    assert refused.value.diagnostic == "changed"


@pytest.mark.usefixtures("settled")
async def test_known_files_are_not_read_again(tmp_path):
    write(tmp_path, {"m/a": b"1" * 100, "m/b": b"2" * 50})
    checkpoints = LocalCheckpoints()
    first = await checkpoints.measure(str(tmp_path / "m"))
    write(tmp_path, {"m/b": b"3" * 60})

    second = await checkpoints.measure(str(tmp_path / "m"))

    assert checkpoints.hashed_bytes == 100 + 50 + 60
    assert second.digest == recomputed({"a": b"1" * 100, "b": b"3" * 60}) != first.digest


async def test_a_file_changed_a_moment_ago_is_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr("capyctl.checkpoints.digest_cache.SETTLED_NS", 10**18)
    write(tmp_path, {"a": b"1" * 100})
    checkpoints = LocalCheckpoints()

    await checkpoints.measure(str(tmp_path))
    await checkpoints.measure(str(tmp_path))

    assert checkpoints.hashed_bytes == 200


@pytest.mark.usefixtures("settled")
async def test_digests_outlive_the_process_in_a_file_of_its_owner(tmp_path):
    write(tmp_path, {"m/a": b"1" * 100})
    cache = tmp_path / "cache"
    first = await LocalCheckpoints(cache).measure(str(tmp_path / "m"))
    later = LocalCheckpoints(cache)

    assert await later.measure(str(tmp_path / "m")) == first

    assert later.hashed_bytes == 0
    (stored,) = cache.iterdir()
    assert stored.stat().st_mode & 0o777 == 0o600
    assert cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("damage", ["open", "garbage", "version", "shape", "digest", "deep"])
async def test_a_cache_that_cannot_be_trusted_is_not(tmp_path, damage):
    write(tmp_path, {"m/a": b"1" * 100})
    cache = tmp_path / "cache"
    first = await LocalCheckpoints(cache).measure(str(tmp_path / "m"))
    (stored,) = cache.iterdir()
    content = stored.read_text()
    if damage == "open":
        stored.chmod(0o620)
    else:
        stored.write_text(
            {
                "garbage": "{",
                "version": content.replace('"version":1', '"version":2'),
                "shape": '{"version":1,"files":[[1,2,"x"]]}',
                "digest": content[: content.rindex('"')][:-3] + '"]]}',
                "deep": "[" * 100_000,
            }[damage]
        )
    later = LocalCheckpoints(cache)

    assert await later.measure(str(tmp_path / "m")) == first
    assert later.hashed_bytes == 100


@pytest.mark.usefixtures("settled")
async def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path):
    write(tmp_path, {"m/a": b"1", "cache": b"a file in the folder's place"})

    facts = await LocalCheckpoints(tmp_path / "cache").measure(str(tmp_path / "m"))

    assert facts.digest == recomputed({"a": b"1"})


@pytest.mark.usefixtures("settled")
async def test_callers_of_one_model_share_the_work(tmp_path):
    write(tmp_path, {"a": b"1" * 100})
    checkpoints = LocalCheckpoints()

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(checkpoints.measure, str(tmp_path))

    assert checkpoints.hashed_bytes == 100


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_an_unreadable_file_says_so(tmp_path):
    write(tmp_path, {"a": b"1"})
    (tmp_path / "a").chmod(0)

    with pytest.raises(Unmeasurable, match="a: Permission denied") as refused:
        await LocalCheckpoints().measure(str(tmp_path))
    assert refused.value.diagnostic == "io_error"
