import os
import subprocess
import sys

import pytest

from capyctl.simulated.usage import (
    Draw,
    OutOfMemory,
    count_launch,
    drawn_bytes,
    put_draw,
    read_draws,
    start_ticks_of,
)


@pytest.fixture
def other():
    """A living process that is not us."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def draw(pid, *, bytes=100, ram_bytes=0, gpu="gpu0"):
    ticks = start_ticks_of(pid)
    assert ticks is not None
    return Draw(pid=pid, start_ticks=ticks, gpu=gpu, bytes=bytes, ram_bytes=ram_bytes)


ROOM = {"gpu0": 150, "system": 1_000}


def put(folder, one, room=ROOM, unified=False):
    put_draw(folder, one, room=room, unified=unified)


def test_two_cannot_take_the_same_bytes(tmp_path, other):
    put(tmp_path, draw(os.getpid()))

    with pytest.raises(OutOfMemory) as refused:
        put(tmp_path, draw(other.pid))

    error = refused.value
    assert (error.domain, error.wanted_bytes, error.free_bytes) == ("gpu0", 100, 50)
    assert [one.pid for one in read_draws(tmp_path)] == [os.getpid()]


def test_a_process_changes_its_own_draw(tmp_path):
    put(tmp_path, draw(os.getpid(), bytes=150))
    put(tmp_path, draw(os.getpid(), bytes=20, ram_bytes=5))

    assert drawn_bytes(read_draws(tmp_path), unified=False) == {"gpu0": 20, "system": 5}


def test_host_memory_is_bounded_too(tmp_path):
    with pytest.raises(OutOfMemory, match="system: 1001 bytes wanted, 1000 free"):
        put(tmp_path, draw(os.getpid(), bytes=0, ram_bytes=1_001))


def test_the_dead_hold_nothing_and_are_swept(tmp_path, other):
    put(tmp_path, draw(other.pid))
    other.kill()
    other.wait()

    assert read_draws(tmp_path) == []
    put(tmp_path, draw(os.getpid()))
    assert [path.name for path in tmp_path.glob("*.json")] == [f"{os.getpid()}.json"]


def test_a_reused_pid_is_another_process(tmp_path):
    mine = draw(os.getpid())
    put(tmp_path, mine)
    path = tmp_path / f"{os.getpid()}.json"
    path.write_text(path.read_text().replace(str(mine.start_ticks), str(mine.start_ticks + 1)))

    assert read_draws(tmp_path) == []


def test_on_a_unified_machine_all_comes_from_one_pool(tmp_path):
    one = draw(os.getpid(), bytes=100, ram_bytes=60)

    with pytest.raises(OutOfMemory, match="unified: 160 bytes wanted, 150 free"):
        put(tmp_path, one, room={"unified": 150}, unified=True)


def test_without_a_gpu_all_is_host_memory(tmp_path):
    put(tmp_path, draw(os.getpid(), gpu=None, bytes=100, ram_bytes=60))

    assert drawn_bytes(read_draws(tmp_path), unified=False) == {"system": 160}


def test_files_that_are_no_draws_are_passed_over(tmp_path):
    (tmp_path / "1.json").write_text("{")
    (tmp_path / "2.json").write_text("[]")
    (tmp_path / "x.json").write_text("{}")

    assert read_draws(tmp_path) == []
    assert read_draws(tmp_path / "absent") == []


def test_launches_are_counted_by_model(tmp_path):
    assert [count_launch(tmp_path, name) for name in ("a", "b", "a", "a")] == [1, 1, 2, 3]


def test_a_zombie_is_gone():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    assert start_ticks_of(pid) is None
    os.waitpid(pid, 0)
