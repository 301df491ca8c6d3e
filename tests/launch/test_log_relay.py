"""The relay keeps what the disk takes, says what it lost, and never holds the engine up."""

import os
import resource
import sys
import threading

import pytest

from capyctl.launch.log_relay import Backlog, RotatingFile, write_out
from capyctl.launch.redaction import LineScrubber, Redactor
from tests.launch.programs import until


def test_files_rotate_at_the_bound_and_two_older_ones_stay(tmp_path):
    path = tmp_path / "a.log"
    log = RotatingFile(str(path), bytes_max=100, keep_count=2)
    for number in range(100):
        log.write(b"line %02d of ten..\n" % number)
    log.close()

    names = ["a.log.2", "a.log.1", "a.log"]
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert all((tmp_path / name).stat().st_size <= 100 for name in names)
    kept = b"".join((tmp_path / name).read_bytes() for name in names).splitlines()
    assert kept == [b"line %02d of ten.." % number for number in range(100 - len(kept), 100)]
    assert len(kept) > 10


def test_one_block_larger_than_the_bound_is_split_between_lines(tmp_path):
    log = RotatingFile(str(tmp_path / "a.log"), bytes_max=50, keep_count=2)
    log.write(b"0123456789\n" * 9)
    log.close()

    assert (tmp_path / "a.log.1").read_bytes() == b"0123456789\n" * 4
    assert (tmp_path / "a.log").read_bytes() == b"0123456789\n"


def test_a_full_disk_drops_and_says_so_once_it_is_not_full(tmp_path):
    (tmp_path / "a.log").touch()
    log = RotatingFile("/dev/full", bytes_max=1000, keep_count=2)
    log.write(b"first\n")
    log.write(b"second\n")

    os.close(log._file)
    log.path, log._file, log._retry_at_s = str(tmp_path / "a.log"), -1, 0.0
    log.write(b"third\n")
    log.close()

    assert (tmp_path / "a.log").read_text() == (
        "[capyctl: 13 bytes of output were not logged: No space left on device]\nthird\n"
    )


def test_a_reader_that_outruns_the_writer_loses_whole_lines_and_counts(tmp_path):
    backlog = Backlog(bytes_max=1000)
    backlog.put(b"kept\npar")
    backlog.put(b"x" * 2000)
    backlog.put(b"y" * 2000)
    backlog.put(b"tial\nlast\n")
    backlog.end()
    log = RotatingFile(str(tmp_path / "a.log"), bytes_max=1000, keep_count=2)
    write_out(backlog, log, LineScrubber(Redactor()))

    assert (tmp_path / "a.log").read_text() == (
        "kept\n[capyctl: 4003 bytes of output were not logged: the log could not keep up]\nlast\n"
    )


def test_a_loss_at_the_very_end_is_noted(tmp_path):
    backlog = Backlog(bytes_max=10)
    backlog.put(b"x" * 2000)
    backlog.end()
    log = RotatingFile(str(tmp_path / "a.log"), bytes_max=1000, keep_count=2)
    write_out(backlog, log, LineScrubber(Redactor()))

    assert "2000 bytes" in (tmp_path / "a.log").read_text()


def test_tiny_pieces_are_bounded_too():
    backlog = Backlog(bytes_max=100_000)
    for _ in range(10_000):
        backlog.put(b"x")
    assert len(backlog._pieces) < 1000


@pytest.mark.slow
async def test_lines_are_there_while_the_engine_runs(bench):
    command = bench.program(
        "os.write(1, b'hello\\nhal'); tell('up', 1); os.read(os.open(sys.argv[2], os.O_RDONLY), 1);"
        "os.write(2, b'f\\xff\\r10%\\r\\nend')"
    )
    process = await bench.run(command)
    await bench.ear.line()
    await until(lambda: bench.log(command).read_bytes() == b"hello\n")

    bench.open_gate()
    await bench.processes.wait_exit(process)
    assert await bench.tail(command) == "hello\nhalf�\n10%\nend\n"


@pytest.mark.slow
async def test_a_flood_ends_and_leaves_bounded_files(bench):
    """50 MiB as fast as they can be written."""
    program = "import os\nfor _ in range(800): os.write(1, (b'y' * 127 + b'\\n') * 512)"
    command = bench.command(sys.executable, "-I", "-S", "-c", program)
    process = await bench.run(command)
    assert (await bench.processes.wait_exit(process)).exit_code == 0
    await until(lambda: bench.processes._reap_relays() or not bench.processes._relays)

    names = os.listdir(bench.log(command).parent)
    assert command.launch + ".log.1" in names
    sizes = [(bench.log(command).parent / name).stat().st_size for name in names]
    assert len(sizes) <= 3
    assert max(sizes) <= 16 << 20


@pytest.mark.slow
async def test_a_file_that_may_not_grow_neither_stops_the_engine_nor_the_relay(bench):
    """A limit on the file's size stands for a disk that fills up and gets room again."""
    program = """
for step in range(3):
    for _ in range(200): os.write(1, b'x' * 1000 + b'\\n')
    tell('wrote', step)
    os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
"""
    command = bench.program(program)
    await bench.spawn(command)
    relay = next(iter(bench.processes._relays))
    hard = resource.prlimit(relay, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(relay, resource.RLIMIT_FSIZE, (100_500, hard))
    await bench.processes.open_latch(command.launch)
    await bench.ear.line()
    await until(lambda: bench.log(command).stat().st_size > 90_000)
    resource.prlimit(relay, resource.RLIMIT_FSIZE, (hard, hard))
    bench.open_gate()
    await bench.ear.line()
    await bench.ear.line()
    await until(lambda: bench.processes._reap_relays() or not bench.processes._relays)

    lines = bench.log(command).read_text().splitlines()
    assert any("bytes of output were not logged: File too large" in line for line in lines)
    assert all(line == "x" * 1000 or line.startswith("[capyctl: ") for line in lines)


def test_the_writer_ends_with_the_backlog(tmp_path):
    backlog = Backlog()
    log = RotatingFile(str(tmp_path / "a.log"), bytes_max=1000, keep_count=2)
    writer = threading.Thread(target=write_out, args=(backlog, log, None))
    writer.start()
    backlog.put(b"as it is \xff")
    backlog.end()
    writer.join(10)

    assert (tmp_path / "a.log").read_bytes() == b"as it is \xff"
