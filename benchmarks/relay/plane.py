"""The data plane as a process to measure: ``python -m benchmarks.relay.plane PORT ENGINE_PORT``.

Everything is on that is on by default: key, gate, queue, deadlines, records.
"""

import sys

import trio

from capyctl.dataplane.listener import serve
from capyctl.dataplane.plane import Plane
from capyctl.dataplane.records import RequestRecord
from capyctl.dataplane.routes import ENGINE_PATHS, Route, RouteTable
from capyctl.dataplane.tls import HostTls
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.domain.launches import Endpoint
from capyctl.gates.admission import Admission
from capyctl.gates.gate import Gate

KEY = b"sk-test-key"
RUNNING_MAX = 1024
"""Above what the scenarios ask for, so that the queue is not what is measured."""


async def main(port: int, engine_port: int) -> None:
    engine = Endpoint(host="127.0.0.1", port=engine_port, key="k", served_name="m")
    await serve_model(port, engine)


async def serve_model(port: int, engine: Endpoint, hosts_tls: HostTls | None = None) -> None:
    """A plane with the one model ``m``."""
    deployment = DeploymentId("01J00000000000000000000000")
    admission = Admission(deployment, running_max=RUNNING_MAX)
    gate = Gate(InstanceId(deployment, 0))
    admission.add_gate(gate)
    gate.open_for(engine, 1)
    route = Route(
        name="m",
        deployment=deployment,
        admission=admission,
        engine_paths=frozenset(ENGINE_PATHS),
        family="vllm",
        takes_cache_salt=True,
        request_deadline_s=600.0,
    )
    table = RouteTable(models={"m": route})
    records: dict[str, int] = {}

    def count(record: RequestRecord) -> None:
        records[record.outcome.value] = records.get(record.outcome.value, 0) + 1
        # What the instance's actor does when it has seen the engine idle.
        if gate.unproven_count:
            gate.settle_unproven()

    plane = Plane(routes=lambda: table, api_key=KEY, on_request=count, hosts_tls=hosts_tls)
    await serve(("127.0.0.1", port), plane)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]))
