"""TensorFold: its command line, its readiness, its figures. It never parks."""

import attrs
import pytest

from capyctl.contracts.engines import EngineBroken, NotReady, ParkRefused
from capyctl.domain.units import GIB, MIB
from capyctl.engines.arguments import check_extra_args
from capyctl.engines.tensorfold import Tensorfold
from tests.engines_unit.fake_server import Told
from tests.engines_unit.scenes import DEPLOYMENT, KEYS, LAUNCH, UUID, control, order, surroundings
from tests.engines_unit.test_arguments import PROFILE

TENSORFOLD = Tensorfold(surroundings=surroundings())
HEAD = ("/opt/tensorfold/bin/tensorfold", "serve", "/models/m", "--name", "m")
NETWORK = ("--host", "127.0.0.1", "--port", "8101", "--no-update-check")
CONSTANT = ("--backend", "cuda", "--snapshot-dir", "none", "--context", "8192")
PLAIN = (*HEAD, *NETWORK, *CONSTANT, "--parallel", "8", "--drafter", "none")


def render(**settings):
    ordered = order("tensorfold", **({"context_length": 8192} | settings))
    return TENSORFOLD.render(ordered, port=8101, keys=KEYS)


def test_the_shortest_command_line():
    assert render().argv == PLAIN


def test_everything_declared():
    typed = {
        "kv_cache_dtype": "int8",
        "tensorfold.max_tokens": 4096,
        "tensorfold.thinking": False,
    }
    rendered = render(concurrency=4, typed=typed, profile_args=("--ple-on-ssd",))
    assert rendered.argv == (
        *(*HEAD, *NETWORK, *CONSTANT, "--parallel", "4", "--drafter", "none"),
        *("--kv-dtype", "int8", "--max-tokens", "4096", "--no-thinking"),
        "--ple-on-ssd",
    )


def test_without_a_context_nothing_is_rendered():
    with pytest.raises(ValueError, match="context_length"):
        render(context_length=None)


@pytest.mark.parametrize("extra", [("--drafter", "/models/d"), ("--no-drafts",)])
def test_drafting_is_off_unless_somebody_says_otherwise(extra):
    assert "none" not in render(extra_args=extra).argv[len((*HEAD, *NETWORK, *CONSTANT)) :]


def test_a_draft_model_is_its_drafter():
    argv = render(draft_path="/models/small").argv
    assert argv[argv.index("--drafter") + 1] == "/models/small"
    assert "none" not in argv[argv.index("--drafter") :]


@pytest.mark.parametrize("extra", [("--no-drafts",), ("--drafter", "/x")])
def test_a_draft_model_beside_an_argument_is_refused(extra):
    with pytest.raises(ValueError, match=r"model\.draft"):
        render(draft_path="/models/small", extra_args=extra)


def test_drafting_both_ways_is_refused():
    with pytest.raises(ValueError, match="contradict"):
        render(extra_args=("--no-drafts",), profile_args=("--drafter", "/models/d"))


def test_an_extra_parallel_takes_the_place_of_ours():
    argv = render(extra_args=("--parallel", "2")).argv
    assert argv[argv.index("--parallel") + 1] == "2"
    assert argv.count("--parallel") == 1


def test_parallel_beside_its_field_is_refused():
    with pytest.raises(ValueError, match="max_concurrent_requests"):
        check_extra_args(
            "tensorfold", PROFILE, ["--parallel", "2"], declared={"max_concurrent_requests"}
        )


@pytest.mark.parametrize(
    "option",
    [
        "--host",
        "--tp",
        "--no-update-check",
        "--api-key",
        "--snapshot-dir",
        "--metrics-open",
        "--enable-sleep-mode",
    ],
)
def test_reserved_options_are_refused(option):
    with pytest.raises(ValueError, match="capyctl itself"):
        check_extra_args("tensorfold", PROFILE, [option, "1"])


@pytest.mark.parametrize(
    "args", [["--drafter", "/models/d"], ["--vision-urls"], ["--lane-kernels", "on"]]
)
def test_what_names_code_or_reaches_out_needs_approval(args):
    with pytest.raises(ValueError, match="approved_options"):
        check_extra_args("tensorfold", PROFILE, args)
    approved = attrs.evolve(
        PROFILE, approved_options=(args[0],), approved_paths=("/models",), name="p"
    )
    check_extra_args("tensorfold", approved, args)


def test_a_drafter_is_a_folder_never_a_name():
    approved = attrs.evolve(
        PROFILE, approved_options=("--drafter",), approved_paths=("/models",), name="p"
    )
    with pytest.raises(ValueError, match="absolute"):
        check_extra_args("tensorfold", approved, ["--drafter", "someone/repo"])


def test_the_environment_is_closed(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "caller's")
    fold = "/var/lib/capyctl/engines/tensorfold/0.6.5-cu130/torch_extensions"
    found = render(request_bytes=12 * GIB + 3 * MIB // 2, build_fingerprint="0.6.5/cu130")
    assert dict(found.env) == {
        "PATH": "/opt/tensorfold/bin:/usr/local/bin:/usr/bin:/bin",
        "CAPYCTL_ENGINE_LOG": f"/var/lib/capyctl/logs/{DEPLOYMENT}/{LAUNCH}.log",
        "CUDA_VISIBLE_DEVICES": UUID,
        "MAX_JOBS": "5",
        "FLASHINFER_NVCC_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "VLLM_HOST_IP": "127.0.0.1",
        "TENSORFOLD_NO_UPDATE_CHECK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TORCH_EXTENSIONS_DIR": fold,
        "TENSORFOLD_CUDA_MEMORY_LIMIT_GB": "12.00097656",
    }


@pytest.mark.parametrize(
    ("request_bytes", "limit"),
    [(8 * GIB, "8"), (8 * GIB + MIB - 1, "8"), (8 * GIB + 512 * MIB, "8.5")],
)
def test_the_limit_is_rounded_down_to_a_mebibyte(request_bytes, limit):
    assert render(request_bytes=request_bytes).env["TENSORFOLD_CUDA_MEMORY_LIMIT_GB"] == limit


@attrs.define(slots=False)
class Scripted:
    ok: object = True
    running: int = 0
    busy: bool = False
    health: Told | None = None

    def __call__(self, asked):
        if asked.path == "/health":
            words = {"ok": self.ok, "requests_running": self.running, "busy": self.busy}
            return self.health or Told(body=words)
        if asked.path == "/v1/models":
            return Told(body={"data": [{"id": "m"}]})
        if asked.path == "/metrics":
            lines = [
                f"tensorfold:requests_running {self.running}",
                "tensorfold:requests_waiting 0",
                "tensorfold:kv_cache_usage_ratio 0.5",
            ]
            return Told(body="\n".join(lines).encode())
        return Told(body={"choices": [{"message": {"content": "Hello"}}]})


async def test_readiness(serve):
    server = await serve(Scripted())
    at = control(server.port, admin_key=None)
    assert await TENSORFOLD.wait_ready(at, order("tensorfold")) is None
    assert server.calls() == ["GET /health", "GET /v1/models", "POST /v1/chat/completions"]


@pytest.mark.parametrize("ok", [False, None, "yes"])
async def test_health_must_say_ok(serve, ok):
    server = await serve(Scripted(ok=ok))
    with pytest.raises(NotReady, match="ok: true"):
        await TENSORFOLD.wait_ready(control(server.port), order("tensorfold"))


async def test_figures(serve):
    server = await serve(Scripted(running=2))
    seen = await TENSORFOLD.sample(control(server.port))
    assert (seen.running, seen.waiting, seen.kv_usage_ratio) == (2, 0, 0.5)
    assert server.calls() == ["GET /metrics"]


@pytest.mark.parametrize(("busy", "running"), [(True, 1), (False, 0)])
async def test_busy_counts_as_one_that_runs(serve, busy, running):
    server = await serve(Scripted(busy=busy))
    seen = await TENSORFOLD.sample(control(server.port))
    assert seen.running == running


async def test_without_health_the_gauges_count(serve):
    server = await serve(Scripted(health=Told(hang_up=True)))
    assert (await TENSORFOLD.sample(control(server.port))).running == 0


async def test_it_never_parks():
    assert TENSORFOLD.parks is False
    with pytest.raises(ParkRefused):
        await TENSORFOLD.park(control(1))
    with pytest.raises(EngineBroken):
        await TENSORFOLD.wake(control(1), canary=None)
