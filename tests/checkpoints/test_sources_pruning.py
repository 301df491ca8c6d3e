"""Which downloads nobody needs, and that nothing else is ever removed."""

import attrs
import pytest
import trio

from capyctl.checkpoints.sources import FetchPolicy, RemoteSources
from capyctl.checkpoints.sources_layout import FetchedFile, Manifest, Place, write_manifest
from capyctl.checkpoints.sources_pruning import find_unused, remove_source
from capyctl.checkpoints.sources_space import Space

A = "sources/huggingface/Own--A@" + "1" * 40
B = "sources/http/" + "2" * 64
COMING = "sources/huggingface/Own--C@" + "3" * 40


def put(root, key, *, size=100, complete=True):
    place = Place(root, key)
    place.folder.mkdir(parents=True)
    (place.folder / "w.bin").write_bytes(b"x" * size)
    files = (FetchedFile(name="w.bin", size_bytes=size),)
    write_manifest(place.manifest, Manifest(complete=complete, files=files))
    return place


@pytest.fixture
def root(tmp_path):
    put(tmp_path, A)
    put(tmp_path, B, size=50)
    Place(tmp_path, COMING).partial.mkdir(parents=True)
    (Place(tmp_path, COMING).partial / "w.bin").write_bytes(b"x" * 10)
    return tmp_path


def found(root, keys=(), paths=()):
    return [(one.key, one.held_bytes, one.complete) for one in find_unused(root, keys, paths)]


def test_what_no_deployment_refers_to_is_unused(root):
    assert found(root) == [(A, 100, True), (COMING, 10, False), (B, 50, True)]
    assert found(root, keys={A, COMING}) == [(B, 50, True)]


def test_a_path_into_it_is_a_reference_too(root):
    inside = str(Place(root, A).folder / "w.bin")
    link = root / "mine"
    link.symlink_to(Place(root, B).folder)

    assert found(root, paths=[inside, str(link)]) == [(COMING, 10, False)]


def test_others_files_are_left_alone(root):
    """A folder without a manifest of ours, and one whose manifest others may write."""
    theirs = root / "sources/huggingface/mine"
    theirs.mkdir()
    (theirs / "w.bin").write_bytes(b"x")
    Place(root, A).manifest.chmod(0o666)

    assert found(root, keys={COMING}) == [(B, 50, True)]
    remove_source(root, A)
    assert (Place(root, A).folder / "w.bin").exists()


def test_without_downloads_there_is_nothing(tmp_path):
    assert find_unused(tmp_path, (), ()) == ()


@pytest.mark.parametrize("key", [A, B, COMING])
def test_removing_leaves_the_rest(root, key):
    before = {key for key, _, _ in found(root)}
    remove_source(root, key)

    assert {key for key, _, _ in found(root)} == before - {key}
    assert not any((root / key).parent.glob(f"{(root / key).name}*"))


def test_links_are_not_followed(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "w.bin").write_bytes(b"x")
    (Place(root, A).folder / "link").symlink_to(outside)
    remove_source(root, A)

    assert (outside / "w.bin").exists()
    assert not Place(root, A).folder.exists()


@attrs.frozen
class Sources:
    made: RemoteSources

    async def keys(self, *, apply, **changes):
        asked = {"keys": (), "paths": (), **changes}
        return {one.key for one in await self.made.prune(**asked, apply=apply)}


@pytest.fixture
def sources(root):
    space = Space(root=root, max_bytes=1 << 30)
    return Sources(RemoteSources(space=space, policy=FetchPolicy(), secrets=root / "secrets"))


async def test_looking_removes_nothing(sources, root):
    assert await sources.keys(apply=False) == {A, B, COMING}
    assert await sources.keys(apply=True, keys=(A,)) == {B, COMING}
    assert await sources.keys(apply=False) == {A}


async def test_what_is_coming_now_is_left_alone(sources, root):
    sources.made._downloads[COMING] = object()

    assert await sources.keys(apply=True) == {A, B}
    await trio.lowlevel.checkpoint()
    assert Place(root, COMING).partial.exists()
