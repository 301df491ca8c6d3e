"""Load of engines on other machines, one of them reached by plain HTTP as its document says."""

from __future__ import annotations

import http.client

import pytest

from tests.e2e.daemon import simulation, wait_until
from tests.e2e.multi.fleet import Host, fleet

pytestmark = pytest.mark.slow

TRUSTED = "ingress.transport=trusted_private_link"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("load"), "a") as made:
        b = Host(made.root, "b", "127.0.1.11", simulation(), sets=(TRUSTED,))
        made.prepare(b)
        b.start()
        made.server.wait_host("b", "online")
        yield made


def test_samples_of_every_host_are_fresh_and_a_trusted_link_is_plain(made):
    server = made.server
    id = server.create("model", instances=2)
    server.wait_measured(id, 2)
    server.do(id, "start")
    server.wait_all_ready(id)
    assert sorted(map(str, server.hosts_of(id))) == ["a", "b"]

    def fresh():
        rows = server.get(f"/metrics/load?deployment={id}").json()["deployments"][0]["instances"]
        return all((row["sample"] or {}).get("fresh") for row in rows) and rows

    rows = wait_until(fresh, what="a fresh sample of each instance", within_s=20.0)

    assert {row["host_id"] for row in rows} == {one["host_id"] for one in server.hosts().values()}
    assert all(row["sample"]["age_ms"] < 3000 for row in rows)
    assert all(row["sample"]["engine"]["running"] == 0 for row in rows)
    assert [server.chat("model").status for _ in range(6)] == [200] * 6
    assert any("plain HTTP" in text for text in server.hosts()["b"]["warnings"])
    assert not any("plain HTTP" in text for text in server.hosts()["a"]["warnings"])
    plain = http.client.HTTPConnection("127.0.1.11", made.hosts["b"].port, timeout=10)
    plain.request("POST", "/v1/chat/completions", b"{}", {"Content-Type": "application/json"})
    assert plain.getresponse().status == 400
    plain.close()
    made.hosts["a"].freeze()
    try:
        wait_until(lambda: not fresh(), what="what is silent is not fresh", within_s=20.0)
    finally:
        made.hosts["a"].thaw()
