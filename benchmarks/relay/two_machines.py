"""Two machines to measure: ``python -m benchmarks.relay.two_machines PORT ENGINE_PORT [plain]``.

A server's plane, and the ingress of the host where the engine runs; between them mutual TLS, or
plain HTTP. The ingress is a child process, so that both count as one proxy. ``PORT ENGINE_PORT
ingress FOLDER`` and ``PORT INGRESS_PORT server FOLDER`` are one of them alone, with certificates
from a folder that `write_certificates` filled.
"""

import sys
import tempfile
from pathlib import Path

import attrs
import trio

from benchmarks.relay.plane import serve_model
from benchmarks.relay.proxies import Process, free_port
from capyctl.dataplane.ingress import Ingress
from capyctl.dataplane.tls import HostTls, ListenerTls
from capyctl.domain.ids import HostId, LaunchId
from capyctl.domain.launches import Endpoint, IngressPass
from tests.dataplane import certificates

HOST, SERVER = HostId("host.bench"), "server.bench"
LAUNCH = LaunchId("01J00000000000000000000000")


def _raise(error: Exception) -> None:
    raise error


async def ingress(port: int, engine_port: int, folder: Path | None) -> None:
    tls = None
    if folder is not None:
        context = certificates.listening(*_read(folder, HOST))
        tls = ListenerTls(
            context=lambda: context,
            accepts=lambda session: certificates.peer_name(session) == SERVER,
        )
    served = Ingress(tls=tls, on_bug=_raise)
    engine = Endpoint(host="127.0.0.1", port=engine_port, key="k", served_name="m")
    served.launches.open(LAUNCH, engine, generation=1)
    await served.serve(("127.0.0.1", port))


async def server(port: int, ingress_port: int, folder: Path | None) -> None:
    tls = None
    if folder is not None:
        context = certificates.calling(*_read(folder, SERVER))
        tls = HostTls(
            context=lambda: context,
            name=str,
            accepts=lambda session, host: certificates.peer_name(session) == host,
        )
    through = IngressPass(host=HOST, launch=LAUNCH, generation=1, secure=tls is not None)
    there = Endpoint(
        host="127.0.0.1", port=ingress_port, key=None, served_name="m", ingress=through
    )
    await serve_model(port, there, hosts_tls=tls)


@attrs.frozen
class _Known:
    """An authority of which only the certificate is needed."""

    pem: str


def write_certificates(folder: Path) -> None:
    authority = certificates.ours()
    (folder / "authority").write_text(authority.pem)
    for name in (HOST, SERVER):
        (folder / name).write_bytes(authority.signs(name).pem)


def _read(folder: Path, name: str) -> tuple[_Known, certificates.Shown]:
    shown = certificates.Shown((folder / name).read_bytes())
    return _Known((folder / "authority").read_text()), shown


def main() -> None:
    port, engine_port, *more = sys.argv[1:]
    if more[:1] == ["ingress"]:
        folder = Path(more[1]) if len(more) > 1 else None
        trio.run(ingress, int(port), int(engine_port), folder)
        return
    if more[:1] == ["server"]:
        trio.run(server, int(port), int(engine_port), Path(more[1]))
        return
    with tempfile.TemporaryDirectory(prefix="capyctl-bench-") as name:
        folder = None if more == ["plain"] else Path(name)
        if folder is not None:
            write_certificates(folder)
        ingress_port = free_port()
        module = [sys.executable, "-m", "benchmarks.relay.two_machines"]
        words = ["ingress", *([] if folder is None else [name])]
        command = [*module, str(ingress_port), engine_port, *words]
        with tempfile.TemporaryDirectory() as logs:
            child = Process(command, ingress_port, Path(logs) / "log", group=None)
            child.wait_until_it_listens()
            trio.run(server, int(port), ingress_port, folder)


if __name__ == "__main__":
    main()
