"""Calls and their ends cross as they are; what is of another type does not."""

from __future__ import annotations

import attrs
import msgspec
import pytest

from capyctl.contracts.checkpoints import Unfetchable, Unmeasurable
from capyctl.contracts.engines import EngineBroken, ParkRefused
from capyctl.contracts.host import EndOutcome, LaunchRefused, ParkProof
from capyctl.contracts.hosts import CapabilityMissing, HostFailed
from capyctl.domain.checkpoints import AttentionShape, CheckpointFacts, RemoteSource, SourceKind
from capyctl.domain.devices import MachineShape, MemoryDomain, MemoryKind, Profile
from capyctl.domain.hosts import HostPublication, IngressAddress
from capyctl.domain.identity import ExitStatus, ProcessIdentity
from capyctl.domain.ids import InstanceId
from capyctl.domain.launches import Installation, LaunchOrder, LaunchRecord, ModelFiles
from capyctl.domain.specs import Residency
from capyctl.wire import link_calls as c
from capyctl.wire.link import (
    FRAME_BYTES_MAX,
    BadFrame,
    Call,
    Error,
    Result,
    read_host_frame,
    read_server_frame,
    write_frame,
)
from tests.machines import making

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
ORDER = LaunchOrder(
    launch=making.LAUNCH,
    instance=InstanceId(making.DEPLOYMENT, 3),
    engine=attrs.evolve(making.ENGINE, typed={"a": 1, "b": True, "c": "x"}, env={"E": "1"}),
    residency=Residency.HOST_BACKED,
    device_uuids=("GPU-0",),
    charges=making.charges(),
    files=ModelFiles(path="/m", digest="sha256:0"),
)
RECORD = LaunchRecord(
    launch=making.LAUNCH,
    deployment=making.DEPLOYMENT,
    index=3,
    family="vllm",
    profile="p",
    process=ProcessIdentity(pid=1, boot_id="b", start_ticks=2**40),
    port=1024,
    served_name="m",
    residency=Residency.DEEP,
    model_path="/m",
    canary="ü\n",
    ready={"gpu0": 2**40},
    installation=Installation(registered="a", observed="b", flag=True),
)
CALLS = (
    c.Measure(model_path="/m", weights_file="a.gguf"),
    c.Fetch(source=RemoteSource(kind=SourceKind.HUGGINGFACE, key="k", files=("a", "b"))),
    c.Prepare(order=ORDER),
    c.Run(record=RECORD),
    c.Discard(record=RECORD),
    c.WaitReady(record=RECORD, order=ORDER),
    c.WaitExit(record=RECORD),
    c.Park(record=RECORD),
    c.Wake(record=RECORD),
    c.End(record=RECORD, grace_s=10.0, idle_s=0.0),
    c.LogTail(record=RECORD, bytes_max=5),
)
VALUES = (
    CheckpointFacts(
        digest="sha256:0",
        weights_bytes=5,
        format="gguf",
        attention=AttentionShape(layers_kv=((1, 2, 3), (4, 5, 6)), context_length=None),
        stat_identity=(("a", 1, 2, 3, 4, 5),),
    ),
    c.Fetched(total_bytes=2**50),
    RECORD,
    c.Nothing(),
    c.Ready(canary=None, peak={"gpu0": 5}, generation=7),
    ExitStatus(exit_code=-9, worker_pid=4),
    ParkProof(residue={"gpu0": 1}, attributed=False),
    c.Woken(generation=8),
    *(c.Ended(outcome=outcome) for outcome in EndOutcome),
    c.Tail(text="x\n", truncated=True),
    c.Tail(),
)
PUBLICATION = HostPublication(
    shape=MachineShape(
        host=making.HOST,
        gpus=(),
        domains=(
            MemoryDomain(
                name="gpu0",
                kind=MemoryKind.DEVICE,
                total_bytes=9,
                managed_limit_bytes=8,
                free_reserve_bytes=1,
                parked_limit_bytes=2,
            ),
        ),
    ),
    profiles=(Profile(name="p", family="vllm", revision=1, executable=("/e",), version="1"),),
    labels={"rack": "1"},
    version="0.1.0",
    capabilities=("a",),
    ingress=IngressAddress(host="h", port=1),
    models_root="/models",
)
ERRORS = (
    LaunchRefused("code", "detail", permanent=True),
    LaunchRefused("code", "detail", permanent=False),
    Unmeasurable("changed", "detail"),
    Unfetchable("denied", "detail", terminal=True, again=False),
    Unfetchable("denied", "detail"),
    ParkRefused("why"),
    EngineBroken("wake_failed", "detail"),
    PermissionError("raw"),
    CapabilityMissing("model_sources"),
)


def crossed(value: object):
    """As the other side reads it."""
    frame = read_host_frame(write_frame(Result(id=ID, value=c.to_wire(value))))
    assert isinstance(frame, Result)
    return c.from_wire(type(value), frame.value)


@pytest.mark.parametrize("call", CALLS, ids=c.method_of)
def test_calls_cross_as_they_are(call):
    method = c.method_of(call)
    frame = read_server_frame(write_frame(Call(id=ID, method=method, params=c.to_wire(call))))

    assert c.from_wire(c.METHODS[frame.method], frame.params) == call


@pytest.mark.parametrize("value", [*VALUES, PUBLICATION], ids=lambda one: type(one).__name__)
def test_values_cross_as_they_are(value):
    assert crossed(value) == value


def test_each_method_and_result_is_tried():
    assert [type(call) for call in CALLS] == list(c.METHODS.values())
    assert {type(value) for value in VALUES} == set(c.RESULTS.values())
    assert c.METHODS.keys() == c.RESULTS.keys()


@pytest.mark.parametrize("problem", ERRORS, ids=repr)
def test_errors_cross_as_they_are(problem):
    frame = c.error_frame(ID, problem, running=False)
    again = c.exception_of(read_host_frame(write_frame(frame)))

    assert (type(again), str(again), vars(again)) == (type(problem), str(problem), vars(problem))
    assert frame.running is False


def test_what_no_contract_foresees_crosses_as_a_failure_of_the_host():
    again = c.exception_of(c.error_frame(ID, KeyError("x"), running=None))

    assert isinstance(again, HostFailed)
    assert str(again) == "KeyError: 'x'"


def test_an_error_of_a_newer_release_is_a_failure_of_the_host():
    assert isinstance(c.exception_of(Error(id=ID, type="newer", detail="d")), HostFailed)


def test_endless_words_are_cut():
    assert len(c.error_frame(ID, ParkRefused("x" * 10_000), running=None).detail) == 4096


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"newer": 1}, True),
        ({"port": "1024"}, False),
        ({"port": 1.5}, False),
        ({"residency": "bogus"}, False),
        ({"process": None}, False),
        ({"ready": {"gpu0": "much"}}, False),
    ],
    ids=str,
)
def test_records_are_read_strictly(changes, taken):
    data = {**c.to_wire(RECORD), **changes}
    if taken:
        assert c.from_wire(LaunchRecord, data) == RECORD
    else:
        with pytest.raises(BadFrame):
            c.from_wire(LaunchRecord, data)


def test_a_field_that_is_not_there_has_its_default_or_is_missed():
    data = c.to_wire(RECORD)
    del data["canary"]
    assert c.from_wire(LaunchRecord, data).canary is None
    del data["launch"]
    with pytest.raises(BadFrame):
        c.from_wire(LaunchRecord, data)


@pytest.mark.parametrize("line", ["x" * 99 + "\n", "\x00" * 99 + "\n", "\x00"])
def test_a_log_fits_into_a_frame_whatever_it_is_made_of(line):
    text = line * (c.LOG_TAIL_BYTES_MAX // len(line))
    tail = c.bounded_tail(text, False)

    frame = write_frame(Result(id=ID, value=c.to_wire(tail)))
    assert len(frame) <= FRAME_BYTES_MAX
    assert text.endswith(tail.text)
    assert tail.truncated == (tail.text != text)
    assert len(msgspec.json.encode(tail.text)) > FRAME_BYTES_MAX // 5
