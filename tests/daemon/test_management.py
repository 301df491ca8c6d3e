"""What a daemon answers to changes, over its own store and control plane."""

import io
import json
from pathlib import Path

import attrs
import pytest
import trio

from capyctl.config.role_document import Given
from capyctl.config.server_settings import load_server
from capyctl.contracts.management import Invite
from capyctl.daemon.assemble_server import open_server
from capyctl.daemon.clock import SystemClock
from capyctl.messages.deployment import ReceiptKey
from capyctl.telemetry.log import Log
from capyctl.wire.enrolment import read_join_file

ASKED = Invite(
    name="gpu-1",
    expires_in_ms=60_000,
    recover=False,
    receipt=ReceiptKey(scope="invitations", key="k", fingerprint="f"),
)


def server(folder: Path):
    """The parts of a server, without its listeners."""
    log = Log(io.StringIO(), role="server", clock_wall_ms=SystemClock().wall_ms)
    return open_server(load_server(folder, Given(env={})), log)


async def invited(management, asked: Invite, found: list) -> None:
    found.append(json.loads(await management.invite(asked)))


@pytest.mark.parametrize("same_key", [True, False])
async def test_a_join_file_is_answered_only_with_its_own_invitation(tmp_path, same_key):
    async with server(tmp_path) as daemon:
        answers: list[dict] = []
        async with trio.open_nursery() as nursery:
            for number in range(4):
                key = "k" if same_key else f"k{number}"
                asked = attrs.evolve(ASKED, receipt=attrs.evolve(ASKED.receipt, key=key))
                nursery.start_soon(invited, daemon.management, asked, answers)
        stored = daemon.world.directory.invitations

    assert len(stored) == (1 if same_key else 4)
    files = [
        (one, read_join_file(one["document"].encode())) for one in answers if "document" in one
    ]
    assert {file.invitation for _, file in files} == set(stored)
    assert all(one["invitation_id"] == file.invitation for one, file in files)
    assert len(files) == len(stored)
