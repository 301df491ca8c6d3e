"""Whose socket it is, as tables of the kernel tell; real strangers are in tests/cases."""

import os
import socket

import pytest

from capyctl.launch.listeners import holders, listening_inodes

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
ROW = "   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1 0\n"


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "net").mkdir()
    rows = [
        ROW.format(local="0100007F:1FA4", state="0A", inode=11),  # 127.0.0.1:8100, listens
        ROW.format(local="0100007F:1FA4", state="01", inode=12),  # a connection to it
        ROW.format(local="00000000:1FA5", state="0A", inode=13),  # any address, 8101
        "   3: torn\n",
    ]
    (tmp_path / "net" / "tcp").write_text(HEAD + "".join(rows))
    six = ROW.format(local="0" * 32 + ":1FA4", state="0A", inode=14)
    (tmp_path / "net" / "tcp6").write_text(HEAD + six)
    return tmp_path


def test_only_listening_sockets_of_that_port_count(proc):
    assert listening_inodes(8100, proc=proc) == {11, 14}
    assert listening_inodes(8101, proc=proc) == {13}
    assert listening_inodes(8102, proc=proc) == set()


def test_without_tables_nobody_listens(tmp_path):
    assert listening_inodes(8100, proc=tmp_path) == set()


def test_holders_are_found_by_their_descriptors(proc):
    for pid, targets in {"5": ["socket:[11]"], "6": ["socket:[99]", "/dev/null"]}.items():
        (proc / pid / "fd").mkdir(parents=True)
        for number, target in enumerate(targets):
            os.symlink(target, proc / pid / "fd" / str(number))

    assert holders({11}, [5, 6, 7], proc=proc) == (5,)
    assert holders({13}, [5, 6], proc=proc) == ()


def test_our_own_socket_is_found_here():
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        port = mine.getsockname()[1]
        before = listening_inodes(port)
        mine.listen()
        found = holders(listening_inodes(port), [os.getpid()])

    assert before == set()
    assert found == (os.getpid(),)
