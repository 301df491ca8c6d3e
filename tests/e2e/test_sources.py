"""Deployments whose files come from a Hub or an address, in real daemons with simulated engines."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capyctl.cli.control_socket import ask_role
from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.checkpoints.fake_hub import COMMIT, FakeHub, serving, sha256
from tests.checkpoints.test_digest import recomputed
from tests.e2e.daemon import MIB, Daemon, running, wait_until

pytestmark = pytest.mark.slow

KEY = f"sources/huggingface/Own--Model@{COMMIT}"
HF = {"hf": f"Own/Model@{COMMIT}"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    folder = write_checkpoint(tmp_path_factory.mktemp("m") / "model", weights_bytes=8 * MIB)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(files):
    with serving(FakeHub(repositories={"Own/Model": dict(files)})) as made:
        yield made


def weights_name(files) -> str:
    return max(files, key=lambda name: len(files[name]))


def daemon_of(tmp_path, hub, **options):
    flags = {"--hf-endpoint": hub.url, **options.pop("flags", {})}
    return running(tmp_path, flags=flags, **options)


def row(daemon: Daemon, id: str) -> dict:
    rows = daemon.deployment(id)["model_sources"]
    assert len(rows) == 1
    return rows[0]


def wait_row(daemon: Daemon, id: str, state: str) -> dict:
    def there():
        found = daemon.deployment(id).get("model_sources", [{}])[0]
        return found if found.get("state") == state else None

    return wait_until(there, what=f"the source of {id} is {state}")


def test_a_model_of_the_hub_is_fetched_measured_and_served(tmp_path, hub, files):
    total = sum(map(len, files.values()))
    with daemon_of(tmp_path, hub) as daemon:
        id = daemon.create("m", model=HF)
        verified = wait_row(daemon, id, "verified")
        recorded = wait_until(
            lambda: (d := daemon.deployment(id)["checkpoint_digest"])["state"] == "recorded" and d,
            what="the digest is recorded",
        )

        assert verified == {
            "host_id": recorded["host_id"],
            "source_key": KEY,
            "state": "verified",
            "bytes_done": total,
            "bytes_total": total,
        }
        assert recorded["digest"] == recomputed(files)
        assert recorded["provenance"] == "fetched"
        assert daemon.get("/model-sources").json() == {"api_version": "1", "referenced": [KEY]}
        assert daemon.chat("m").status == 200
        daemon.do(id, "stop")
        daemon.wait_state(id, "stopped")
        daemon.do(id, "delete")
        assert daemon.get("/model-sources").json()["referenced"] == []
        assert {path.name for path in (daemon.models / KEY).iterdir()} == files.keys()


def test_starts_are_refused_and_requests_wait_while_files_come(tmp_path, hub, files):
    hold = hub.fail(weights_name(files), hold=threading.Event()).hold
    with daemon_of(tmp_path, hub) as daemon:
        id = daemon.create("m", model=HF)
        coming = wait_row(daemon, id, "downloading")
        refused = daemon.act(id, "start")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(daemon.chat, "m")
            wait_until(
                lambda: daemon.get("/metrics/load").json()["deployments"][0]["router"]["waiting"],
                what="the request waits",
            )
            hold.set()
            answered = asked.result(30)

    assert (refused.status, refused.json()["error"]["code"]) == (503, "model_source_pending")
    assert refused.json()["error"]["retryable"] is True
    assert coming["bytes_total"] == sum(map(len, files.values()))
    assert coming["source_key"] == KEY
    assert answered.status == 200


def test_a_download_goes_on_after_the_daemon_was_killed(tmp_path, hub, files):
    name = weights_name(files)
    hub.fail(name, hold=threading.Event())
    with daemon_of(tmp_path, hub) as daemon:
        id = daemon.create("m", model=HF)
        partial = daemon.models / f"{KEY}.partial" / name
        half = len(files[name]) // 2
        wait_until(lambda: partial.exists() and partial.stat().st_size == half, what="half of it")
        daemon.kill()
        wait_until(lambda: not downloading(daemon), what="the program ends with the daemon")
        daemon.start()
        wait_row(daemon, id, "verified")
        assert daemon.chat("m").status == 200

    asked = [one.headers["Range"] for one in hub.asked if one.path.endswith(name)]
    assert asked == ["bytes=0-", f"bytes={half}-"]


def downloading(daemon: Daemon) -> list:
    return [one for one in daemon.processes() if "downloads_program" in one.argv]


def test_deployments_share_one_download(tmp_path, hub, files):
    with daemon_of(tmp_path, hub) as daemon:
        ids = [daemon.create(f"m{n}", model=HF) for n in range(3)]
        for id in ids:
            wait_row(daemon, id, "verified")
        assert daemon.get("/model-sources").json()["referenced"] == [KEY]

    assert len([path for path in hub.paths() if "/resolve/" in path]) == len(files)


def test_what_cannot_be_fetched_fails_the_start_and_the_request(tmp_path, hub, files):
    hub.token = "hf_secret"
    with daemon_of(tmp_path, hub) as daemon:
        id = daemon.create("m", model=HF)
        failed = wait_row(daemon, id, "failed")
        refused = daemon.act(id, "start")
        answered = daemon.chat("m")
        digest = daemon.deployment(id)["checkpoint_digest"]

        assert failed["terminal"] is True
        assert failed["reason"].startswith("unauthorized: ")
        assert (refused.status, refused.json()["error"]["code"]) == (409, "model_source_failed")
        assert (answered.status, answered.json()["code"]) == (409, "conflict")
        assert (digest["state"], digest["diagnostic"]) == ("pending", "unauthorized")

        secrets = daemon.state / "secrets"
        secrets.mkdir(0o700, exist_ok=True)
        path = secrets / "hub"
        path.touch(0o600)
        path.write_text("hf_secret\n")
        source = {"repo": "Own/Model", "revision": COMMIT, "token_ref": "secret://hub"}
        config = {"name": "m", "engine": "vllm", "model": {"source": {"huggingface": source}}}
        body = {"config": config, "expected_revision": 1}
        daemon.change("PUT", f"/deployments/{id}", body, key="mended")
        wait_row(daemon, id, "verified")
        assert daemon.chat("m").status == 200
        assert b"hf_secret" not in everything_written(daemon)


def everything_written(daemon: Daemon) -> bytes:
    """The log, the database and all but the secrets of the state root."""
    kept = [path for path in daemon.state.rglob("*") if path.is_file() and path.name != "hub"]
    return b"".join(path.read_bytes() for path in (*kept, daemon.log_path))


def test_a_download_beyond_the_cap_is_refused_and_nothing_is_deleted_for_it(tmp_path, hub):
    earlier = tmp_path / "models/sources/http/earlier"
    earlier.mkdir(parents=True)
    (earlier / "w.bin").write_bytes(bytes(4 * MIB))
    with daemon_of(tmp_path, hub, flags={"--model-sources-max": "10MiB"}) as daemon:
        id = daemon.create("m", model=HF)
        failed = wait_row(daemon, id, "failed")

    assert failed["terminal"] is True
    assert failed["reason"].startswith("too_large: ")
    assert "model_sources.max_bytes" in failed["reason"]
    assert (earlier / "w.bin").exists()


@pytest.mark.parametrize("times", [1, 99])
def test_an_address_is_verified_by_its_hash(tmp_path, hub, times):
    data = write_checkpoint(tmp_path / "gguf", weights_bytes=4 * MIB, format="gguf").read_bytes()
    hub.files["/model.gguf"] = data
    hub.fail("model.gguf", times=times, body=data[:-1] + b"?")
    model = {"source": {"http": {"url": hub.url + "/model.gguf", "sha256": sha256(data)}}}
    with daemon_of(tmp_path, hub, flags={"--model-sources-plain-http": "allowed"}) as daemon:
        id = daemon.create("m", engine="llamacpp", model=model)
        if times == 1:
            wait_row(daemon, id, "verified")
            assert daemon.chat("m").status == 200
        else:
            failed = wait_row(daemon, id, "failed")
            assert failed["reason"].startswith("checksum_mismatch: ")
            assert daemon.act(id, "start").status == 409
            assert not any(
                Path(root, "model.gguf").exists()
                for root, _, _ in os.walk(daemon.models / "sources")
            )


@pytest.mark.parametrize(
    ("sets", "model"),
    [
        ((), {"source": {"http": {"url": "http://127.0.0.1:1/x", "sha256": "a" * 64}}}),
        (("host.model_sources.huggingface=disabled",), HF),
        (("host.model_sources.allowed_hosts=[files.example]",), HF),
    ],
)
def test_the_hosts_policy_is_in_the_answer(tmp_path, hub, sets, model):
    with daemon_of(tmp_path, hub, sets=sets) as daemon:
        body = {"config": {"name": "m", "engine": "vllm", "model": model}, "activate": False}
        refused = daemon.request("POST", "/deployments", body, key="k")

    error = refused.json()["error"]
    assert (refused.status, error["code"]) == (400, "invalid_config")
    assert error["details"] == {"path": "model.source"}


def test_what_is_deployed_no_more_is_pruned(tmp_path, hub):
    with daemon_of(tmp_path, hub) as daemon:
        id = daemon.create("m", model=HF)
        wait_row(daemon, id, "verified")
        asked = {"action": "prune_sources", "apply": True}
        needed = ask_role(daemon.state, asked)["sources"]
        daemon.do(id, "delete")
        wait_until(lambda: daemon.deployment(id) is None, what="it is deleted")
        looked = ask_role(daemon.state, {"action": "prune_sources"})["sources"]
        there = (daemon.models / KEY).exists()
        removed = ask_role(daemon.state, asked)["sources"]

    assert needed == []
    assert [one["source"] for one in looked] == [KEY]
    assert there
    assert removed == looked
    assert not list((daemon.models / KEY).parent.iterdir())


def test_a_host_may_take_a_declared_digest_as_measured(tmp_path):
    declared = "sha256:" + "a" * 64
    flags = {"--trust-declared-digest": "true"}
    with running(tmp_path, flags=flags) as daemon:
        model = {"path": "m", "content_fingerprint": declared}
        folder = write_checkpoint(daemon.models / "m", weights_bytes=64 * MIB)
        for path in folder.iterdir():
            os.utime(path, (1, 1))
        id = daemon.create("m", model=model)
        daemon.do(id, "start")
        found = daemon.wait_state(id, "ready")

    told = found["checkpoint_digest"]
    assert (told["digest"], told["provenance"]) == (declared, "declared_trusted")
