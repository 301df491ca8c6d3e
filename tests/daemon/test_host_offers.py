"""Deployments on a server's hosts: where files lie on each, and what each comes to."""

from __future__ import annotations

import attrs
import pytest

from capyctl.control.directory import Directory
from capyctl.daemon.host_offers import HostsCompleter, HostsResolver
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.devices import Profile
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostPublication, HostRecord, HostSources, HostState
from capyctl.domain.ids import HostId
from capyctl.simulated.document import parse_simulate
from capyctl.simulated.machine import SimulatedMachine

DOCUMENT = {
    "name": "m",
    "engine": "llamacpp",
    "model": "m",
    "resources": {"gpu": "4GiB", "ram": "1GiB"},
}


def record(tmp_path, name, **changes):
    host = HostId(f"01{name.upper()}")
    machine = SimulatedMachine(parse_simulate("gpus=1"), tmp_path / name, host=host)
    profile = Profile(
        name="llamacpp", family="llamacpp", revision=1, executable=("/l",), version="1"
    )
    publication = HostPublication(
        shape=machine.shape(),
        profiles=(profile,),
        version="0.1.0",
        models_root=f"/models/{name}",
        **changes,
    )
    return HostRecord(id=host, name=name, publication=publication)


def directory(*records):
    made = Directory()
    made.load(records)
    return made


@pytest.fixture
def two(tmp_path):
    other = record(tmp_path, "b", labels={"zone": "x"}, sources=HostSources(root="/big"))
    return directory(record(tmp_path, "a"), other)


FACTS = CheckpointFacts(
    digest="sha256:" + "0" * 64, weights_bytes=1 << 30, format="gguf", weights_file="m.gguf"
)


def test_a_relative_path_is_in_each_hosts_own_directory(two):
    resolver = HostsResolver(directory=two)
    spec = HostsCompleter(directory=two)(DOCUMENT)

    assert resolver.path_on(spec.model_path, HostId("01A")) == "/models/a/m"
    assert resolver.path_on("/data/m", HostId("01B")) == "/data/m"
    assert resolver.path_on("sources/http/x", HostId("01A")) == "/models/a/sources/http/x"
    assert resolver.path_on("sources/http/x", HostId("01B")) == "/big/sources/http/x"


def test_each_host_has_its_own_figures(two):
    resolver = HostsResolver(directory=two)
    spec = HostsCompleter(directory=two)(DOCUMENT)

    found = [resolver(spec, FACTS, HostId(id)) for id in ("01A", "01B")]

    assert [one.model_path for one in found] == ["/models/a/m", "/models/b/m"]
    assert [one.engine.model_path for one in found] == ["/models/a/m/m.gguf", "/models/b/m/m.gguf"]
    assert [one.candidates[0].host for one in found] == ["01A", "01B"]


def test_a_host_without_the_labels_is_left_out(two):
    spec = HostsCompleter(directory=two)({**DOCUMENT, "placement": {"selector": {"zone": "x"}}})
    resolver = HostsResolver(directory=two)

    assert resolver(spec, FACTS, HostId("01B")).candidates
    with pytest.raises(Refused, match="selector_mismatch"):
        resolver(spec, FACTS, HostId("01A"))


def test_hosts_that_were_revoked_or_never_came_offer_nothing(tmp_path):
    here = record(tmp_path, "a")
    revoked = attrs.evolve(record(tmp_path, "b"), state=HostState.REVOKED)
    never = HostRecord(id=HostId("01C"), name="c")
    completer = HostsCompleter(directory=directory(here, revoked, never))

    assert completer({**DOCUMENT, "host": "a"})
    for name in ("b", "c"):
        with pytest.raises(Refused, match="hosts here: a"):
            completer({**DOCUMENT, "host": name})


def test_documents_are_completed_by_what_hosts_publish_by_now(two):
    completer = HostsCompleter(directory=two)
    assert not completer(DOCUMENT).explicit

    for known in list(two.hosts.values()):
        said = attrs.evolve(known.publication, explicit=True)
        two.load([attrs.evolve(known, publication=said)])
    assert completer(DOCUMENT).explicit

    two.load([attrs.evolve(known, state=HostState.REVOKED) for known in two.hosts.values()])
    with pytest.raises(Refused, match="No host is enrolled"):
        completer(DOCUMENT)
