"""How often a host reports: its document's word, within what its server has patience for."""

import pytest

from capyctl.link.dial import beat_every_s
from capyctl.wire.link import Welcome


@pytest.mark.parametrize(
    ("report_s", "silent_s", "every_s"),
    [(None, 5.0, 1.0), (0.5, 5.0, 0.5), (2.0, 30.0, 2.0), (2.0, 3.0, 1.0)],
)
def test_several_reports_come_before_it_is_found_silent(report_s, silent_s, every_s):
    welcome = Welcome(
        protocol=1,
        version="0.1.0",
        incarnation="01J0000000000000000000000A",
        compatibility="supported",
        heartbeat_s=1.0,
        silent_s=silent_s,
    )

    assert beat_every_s(welcome, report_s) == every_s
