"""A management in memory: the rules that the API can see, and calls that can be held."""

from __future__ import annotations

import json
from collections import defaultdict

import attrs
import trio

from capyctl.contracts.management import CursorExpired
from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused
from capyctl.domain.events import Event, Receipt
from capyctl.domain.receipts import action_receipt, configuration_receipt
from capyctl.domain.specs import DeploymentSpec
from capyctl.messages.deployment import ActionKind

INCARNATION = "01M5E0M1C4VQT1DXDZNMJ75NRN"
NOW_MS = 1_792_545_615_000
REQUEST_DEADLINE_MS = 1_800_000
PAGE_MAX = 64
HOST_A = "01M5E0MPXN61STKHGZ6BTEFVMA"


class FakeClock:
    """A wall clock that stands."""

    def monotonic_s(self):
        return trio.current_time()

    def wall_ms(self):
        return NOW_MS


class Hold:
    """Keeps calls waiting until it is opened."""

    def __init__(self):
        self.waiting_count = 0
        self._opened = trio.Event()
        self._changed = trio.Event()

    def open(self):
        self._opened.set()

    async def wait_arrived(self, count):
        """Until ``count`` calls have come here."""
        while self.waiting_count < count:
            self._changed = trio.Event()
            await self._changed.wait()

    async def pass_by(self):
        self.waiting_count += 1
        self._changed.set()
        await self._opened.wait()


@attrs.define(kw_only=True)
class Model:
    id: str
    spec: DeploymentSpec
    revision: int = 1
    running: list[bool] = attrs.field(factory=list)
    stopped_instances: set[int] = attrs.field(factory=set)
    is_stopped: bool = False


class FakeSubscription:
    def __init__(self, management, seq):
        self._management = management
        self._seq = seq
        self.closed = trio.Event()

    @property
    def is_closed(self):
        return self.closed.is_set()

    async def next_page(self):
        management = self._management
        await management.pass_by("next_page")
        while self._seq >= management.last_seq:
            await management.committed.wait()
        if self._seq + 1 < management.floor_seq:
            raise CursorExpired
        if management.broken_reads:
            raise RuntimeError("the disk is gone")
        page = tuple(e for e in management.events if e.seq > self._seq)[:PAGE_MAX]
        self._seq = page[-1].seq
        return page

    def close(self):
        self.closed.set()


class FakeManagement:
    """Deployments start and stop at once. Everything is checked in the contract's order."""

    incarnation = INCARNATION

    def __init__(self):
        self.models = {}
        self.receipts = {}
        self.operations = []
        self.events = []
        self.floor_seq = 1
        self.committed = trio.Event()
        self.calls = defaultdict(int)
        self.subscriptions = []
        self.is_shut_down = False
        self.broken_reads = False
        self.refusal = None
        """Raised by the next change instead of making it."""
        self.profiles = {"vllm", "llamacpp"}
        self.full_config = {}
        self.machines = {
            name: {"host_id": id, "name": name, "state": "online"}
            for name, id in (("gpu-a", HOST_A), ("gpu b/1", "01M5E0MPXN61STKHGZ6BTEFVMB"))
        }
        self._holds = {}
        self._ulids = iter(f"01M5E1{n:020d}" for n in range(1_000_000))

    @property
    def last_seq(self):
        return self.events[-1].seq if self.events else 0

    def hold(self, call):
        """Let calls of this name wait from now on."""
        self._holds[call] = Hold()
        return self._holds[call]

    async def pass_by(self, call):
        self.calls[call] += 1
        await trio.lowlevel.checkpoint()
        if call in self._holds:
            await self._holds[call].pass_by()

    def emit(self, kind, *, deployment=None, operation=None, **payload):
        event = Event(
            seq=self.last_seq + 1,
            kind=kind,
            deployment=deployment,
            operation=operation,
            payload_json=canonical_json(payload),
            recorded_at_ms=1_792_545_616_717,
        )
        self.events.append(event)
        self.committed.set()
        self.committed = trio.Event()

    def forget_before(self, seq):
        self.events = [event for event in self.events if event.seq >= seq]
        self.floor_seq = seq

    async def snapshot(self):
        await self.pass_by("snapshot")
        if self.broken_reads:
            raise RuntimeError("the disk is gone")
        return json.dumps(
            {"api_version": "1", "cursor": f"{INCARNATION}:{self.last_seq}", "deployments": []}
        ).encode()

    async def find_receipt(self, scope, key):
        await self.pass_by("find_receipt")
        return self.receipts.get((scope, key))

    def complete(self, document):
        for field in document:
            if field not in ("name", "engine", "model", "instances", "routes", "residency"):
                raise _invalid_config(field, f"unknown field at `{field}`")
        for field in ("name", "model"):
            if field not in document:
                raise _invalid_config(field, f"missing required field at `{field}`")
        if document.get("engine") not in self.profiles:
            raise Refused(
                "profile_not_published",
                "No host publishes the profile",
                {"profile": "x", "hosts": {"here": sorted(self.profiles)}},
            )
        return DeploymentSpec(
            name=document["name"],
            routes=tuple(document.get("routes", [document["name"]])),
            profile=document["engine"],
            family=document["engine"],
            instances=document.get("instances", 1),
            model_path=f"/models/{document['model']}",
            expected_digest=None,
            residency=None,
            request_deadline_s=REQUEST_DEADLINE_MS / 1000,
            document=canonical_json(document),
        )

    def check_known(self, deployment, instance):
        model = self.models.get(deployment)
        if model is None or (instance is not None and instance >= len(model.running)):
            raise Refused("not_found", "There is no such deployment or instance")

    async def create(self, request):
        await self.pass_by("create")
        self._check_open()
        if any(m.spec.name == request.spec.name for m in self.models.values()):
            raise Refused("route_conflict", "The name or a route belongs to another deployment")
        model = Model(
            id=next(self._ulids), spec=request.spec, running=[False] * request.spec.instances
        )
        self.models[model.id] = model
        return self._accept_document(model, request.receipt, "managed_configuration_create")

    async def replace(self, deployment, request):
        await self.pass_by("replace")
        self._check_open()
        model = self._find(deployment, request.expected_revision)
        model.spec = request.spec
        model.revision += 1
        return self._accept_document(model, request.receipt, "managed_configuration_replace")

    async def act(self, deployment, request):
        await self.pass_by("act")
        self._check_open()
        model = self._find(deployment, request.expected_revision)
        if not NOW_MS < request.deadline_at_ms <= NOW_MS + REQUEST_DEADLINE_MS:
            raise Refused("invalid_request", "The deadline is out of range")
        if request.instance is not None and request.instance >= len(model.running):
            raise Refused("not_found", "There is no such instance")
        operation = self._apply(model, request)
        victims = ["01M5E200000000000000000000/0"] if request.evict else None
        response = action_receipt(
            model.id,
            operation,
            revision=model.revision,
            joined=False,
            instance=request.instance,
            victims=victims,
            switch="01M5E300000000000000000000" if request.evict else None,
        )
        return self._remember(request.receipt, response)

    def _apply(self, model, request):
        chosen = range(len(model.running)) if request.instance is None else [request.instance]
        was_running = [model.running[index] for index in chosen]
        if request.action is ActionKind.START:
            if all(was_running):
                raise Refused("runtime_retained", "Every instance is already running")
            return self._set(model, chosen, True, "ready_committed")
        if request.action is ActionKind.STOP:
            if request.instance is not None and not any(was_running):
                return None
            return self._set(model, chosen, False, "ordinary_cleanup_completed")
        if request.action is ActionKind.DELETE:
            if any(was_running):
                raise Refused("delete_requires_cleanup", "Stop it first")
            del self.models[model.id]
            return self._operate(model, "deployment_deleted")
        if model.spec.document.count("restart_only"):
            raise Refused("unsupported_capability", "This model never parks")
        if not any(was_running):
            raise Refused("lifecycle_conflict", "No instance is ready")
        return self._set(model, chosen, False, "parked_committed")

    def _set(self, model, chosen, is_running, kind):
        for index in chosen:
            model.running[index] = is_running
        return self._operate(model, kind)

    def _operate(self, model, kind):
        operation = next(self._ulids)
        self.operations.append(operation)
        self.emit(kind, deployment=model.id, operation=operation)
        return operation

    def _accept_document(self, model, receipt, kind):
        operation = self._operate(model, kind)
        response = configuration_receipt(
            model.id, operation, revision=model.revision, checkpoint_digest="pending"
        )
        return self._remember(receipt, response)

    def _remember(self, receipt, response):
        place = (receipt.scope, receipt.key)
        assert place not in self.receipts, "made twice under one key"
        self.receipts[place] = Receipt(
            scope=receipt.scope, key=receipt.key, fingerprint=receipt.fingerprint, response=response
        )
        return response

    def _find(self, deployment, revision):
        model = self.models.get(deployment)
        if model is None:
            raise Refused("not_found", "There is no such deployment")
        if model.revision != revision:
            raise Refused("revision_conflict", "Expected revision does not match")
        return model

    def _check_open(self):
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        if self.is_shut_down:
            raise Refused("reconciliation_required", "The daemon is stopping")

    async def subscribe(self, after_seq):
        await self.pass_by("subscribe")
        after_seq = self.floor_seq - 1 if after_seq is None else after_seq
        if after_seq + 1 < self.floor_seq:
            raise CursorExpired
        self.subscriptions.append(FakeSubscription(self, after_seq))
        return self.subscriptions[-1]

    async def effective_config(self, id_or_name):
        await self.pass_by("effective_config")
        for model in self.models.values():
            if id_or_name in (model.id, model.spec.name):
                return {
                    "api_version": "1",
                    "deployment_id": model.id,
                    "revision": model.revision,
                    "effective": self.full_config,
                    "hosts": [],
                }
        raise Refused("not_found", "There is no such deployment")

    async def engine_log(self, deployment, *, instance, kib):
        await self.pass_by("engine_log")
        if deployment not in self.models:
            raise Refused("not_found", "There is no such deployment")
        return {"api_version": "1", "deployment_id": deployment, "instance": instance, "kib": kib}

    async def load(self, deployment):
        await self.pass_by("load")
        if deployment is not None and deployment not in self.models:
            raise Refused("not_found", "There is no such deployment")
        return {"observed_at_ms": NOW_MS, "stale_after_ms": 3000, "deployments": []}

    async def hosts(self):
        await self.pass_by("hosts")
        return {"api_version": "1", "hosts": [*self.machines.values()], "observed_at_ms": "1"}

    async def host(self, id_or_name):
        await self.pass_by("host")
        return {"api_version": "1", **self._machine(id_or_name)}

    async def act_on_host(self, host, request):
        await self.pass_by("act_on_host")
        self._check_open()
        machine = self._machine(host)
        action = type(request).__name__.removesuffix("Host").lower()
        machine["state"] = action
        self.emit(f"host_{action}", host_id=machine["host_id"])
        response = {"action": action, "api_version": "1", "host_id": machine["host_id"]}
        return self._remember(request.receipt, canonical_json(response))

    async def invite(self, request):
        await self.pass_by("invite")
        self._check_open()
        invitation = {"host_name": request.name, "expires_at_ms": str(request.expires_in_ms)}
        receipt = json.loads(self._remember(request.receipt, canonical_json(invitation)))
        return canonical_json({**receipt, "document": "secret", "recover": request.recover})

    def _machine(self, id_or_name):
        for machine in self.machines.values():
            if id_or_name in (machine["host_id"], machine["name"]):
                return machine
        raise Refused("not_found", "There is no such host")


def _invalid_config(path, detail):
    return Refused("invalid_config", f"Invalid deployment configuration: {detail}", {"path": path})
