import pytest

from capyctl.gpus.memory import MemoryUnreadable, read_oom_kills, read_ram
from tests.gpus.trees import GIB, cgroup, proc


def figures(found):
    return found.total_bytes, found.available_bytes, found.source


def test_a_machine_without_limits(tmp_path):
    (tmp_path / "cgroup").mkdir()
    found = read_ram(proc(tmp_path), tmp_path / "cgroup")
    assert figures(found) == (64 * GIB, 48 * GIB, "meminfo")


def test_the_tightest_limit_above_us_counts(tmp_path):
    cgroup(tmp_path, "/a", limit=16 * GIB, usage=6 * GIB, inactive=2 * GIB)
    groups = cgroup(tmp_path, "/a/b", limit=32 * GIB, usage=1 * GIB)
    cgroup(tmp_path, "/a/b/c")
    found = read_ram(proc(tmp_path, cgroup="0::/a/b/c\n"), groups)
    assert figures(found) == (16 * GIB, 12 * GIB, "cgroup_v2:/a")


def test_what_is_left_of_any_limit_bounds_what_is_available(tmp_path):
    cgroup(tmp_path, "/a", limit=32 * GIB, usage=31 * GIB)
    groups = cgroup(tmp_path, "/a/b", limit=16 * GIB, usage=2 * GIB)
    found = read_ram(proc(tmp_path, cgroup="0::/a/b\n"), groups)
    assert figures(found) == (16 * GIB, 1 * GIB, "cgroup_v2:/a/b")


def test_the_machine_bounds_what_is_available(tmp_path):
    groups = cgroup(tmp_path, "/", limit=32 * GIB)
    found = read_ram(proc(tmp_path, available=3 * GIB), groups)
    assert figures(found) == (32 * GIB, 3 * GIB, "cgroup_v2:/")


def test_more_in_use_than_allowed_leaves_nothing(tmp_path):
    groups = cgroup(tmp_path, "/", limit=8 * GIB, usage=9 * GIB)
    assert read_ram(proc(tmp_path), groups).available_bytes == 0


def test_a_limit_above_the_machine_is_none(tmp_path):
    groups = cgroup(tmp_path, "/", limit=128 * GIB)
    assert read_ram(proc(tmp_path), groups).source == "meminfo"


@pytest.mark.parametrize("lines", ["4:memory:/x\n0::/\n", "9:cpu,memory:/\n", ""])
def test_older_hierarchies_are_not_read(tmp_path, lines):
    groups = cgroup(tmp_path, "/", limit=8 * GIB)
    found = read_ram(proc(tmp_path, cgroup=lines), groups)
    assert figures(found) == (64 * GIB, 48 * GIB, "meminfo:cgroup_v1_unread")


@pytest.mark.parametrize("path", ["/gone", "/../outside", "relative"])
def test_a_group_that_is_not_here_is_said_to_be_unreadable(tmp_path, path):
    groups = cgroup(tmp_path, "/", limit=8 * GIB)
    (tmp_path / "outside").mkdir()
    found = read_ram(proc(tmp_path, cgroup=f"0::{path}\n"), groups)
    assert found.source == "meminfo:cgroup_v2_unreadable"


@pytest.mark.parametrize("name", ["memory.max", "memory.current", "memory.stat"])
def test_misshapen_limits_are_not_believed(tmp_path, name):
    groups = cgroup(tmp_path, "/", limit=8 * GIB)
    (groups / name).write_text("inactive_file lots\n")
    assert read_ram(proc(tmp_path), groups).source == "meminfo:cgroup_v2_unreadable"


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB", "MemTotal: x kB\nMemAvailable: 1 kB"])
def test_without_the_machines_figures_there_is_nothing(tmp_path, text):
    root = proc(tmp_path)
    (root / "meminfo").write_text(text)
    with pytest.raises(MemoryUnreadable):
        read_ram(root, tmp_path)


def test_ends_for_want_of_memory_are_those_of_our_group(tmp_path):
    groups = cgroup(tmp_path, "/a/b")
    (groups / "a/b/memory.events").write_text("low 0\noom 4\noom_kill 2\n")
    root = proc(tmp_path, cgroup="0::/a/b\n")
    (root / "vmstat").write_text("pgfault 1\noom_kill 9\n")

    assert read_oom_kills(root, groups) == 2


@pytest.mark.parametrize("group", ["0::/gone\n", "0::/\n", "4:memory:/x\n", "0::/../x\n"])
def test_without_a_count_of_its_own_the_machine_s_counts(tmp_path, group):
    groups = cgroup(tmp_path)
    root = proc(tmp_path, cgroup=group)
    assert read_oom_kills(root, groups) is None
    (root / "vmstat").write_text("oom_kill 9\n")

    assert read_oom_kills(root, groups) == 9


def test_this_very_machine():
    found = read_ram()
    assert 0 < found.available_bytes <= found.total_bytes
