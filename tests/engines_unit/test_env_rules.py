import attrs
import pytest

from capyctl.domain.devices import Profile
from capyctl.engines.env_rules import EnvRefused, check_approval, check_env, resolve_env

PROFILE = Profile(
    name="vllm",
    family="vllm",
    revision=1,
    executable=("/x",),
    version="0.30.0",
    env={"VLLM_LOGGING_LEVEL": "INFO", "hf_hub_cache": "/c"},
    approved_env=("VLLM_LOGGING_LEVEL", "VLLM_USE_*"),
)


def test_the_deployments_values_win_over_the_profiles():
    found = resolve_env(
        "vllm", PROFILE, {"vllm_logging_level": "DEBUG"}, {"VLLM_USE_V1": "1", "RUST_LOG": "info"}
    )
    assert found == {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "HF_HUB_CACHE": "/c",
        "VLLM_USE_V1": "1",
        "RUST_LOG": "info",
    }


@pytest.mark.parametrize(
    "name",
    ["NCCL_DEBUG", "ld_preload", "PYTHONPATH", "PATH", "home", "VLLM_API_KEY", "CAPYCTL_X"],
)
def test_reserved_names(name):
    for given in ({"document": {name: "1"}}, {"document": {}, "command_line": {name: "1"}}):
        with pytest.raises(EnvRefused) as caught:
            resolve_env("vllm", attrs.evolve(PROFILE, approved_env=("A*",)), **given)
        assert caught.value.code == f"engine_env_reserved:{name.upper()}"
    with pytest.raises(EnvRefused):
        check_env("vllm", {name: "1"})


def test_llama_cpp_reserves_more():
    for name in ("LLAMA_ARG_HOST", "LLAMA_CACHE", "GGML_CUDA_DEVICES", "HF_TOKEN", "AIP_MODE"):
        with pytest.raises(EnvRefused, match="engine_env_reserved"):
            check_env("llamacpp", {name: "1"})
        check_env("vllm", {name: "1"})
    check_env("llamacpp", {"PYTHONUNBUFFERED": "1"})


def test_the_rest_needs_approval():
    for name in ("VLLM_USES", "OMP_NUM_THREADS"):
        with pytest.raises(EnvRefused) as caught:
            resolve_env("vllm", PROFILE, {name: "1"})
        assert caught.value.code == f"engine_env_not_approved:{name}"


def test_document_and_command_line_do_not_overlap():
    with pytest.raises(EnvRefused) as caught:
        resolve_env("vllm", PROFILE, {"MAX_JOBS": "1"}, {"max_jobs": "1"})
    assert caught.value.code == "engine_env_conflict:MAX_JOBS"


@pytest.mark.parametrize(
    "env",
    [
        {"A B": "1"},
        {"RUST_LOG": "a\nb"},
        {"RUST_LOG": "x" * 4097},
        {"RUST_LOG": "1", "rust_log": "2"},
        {f"N{n}": "1" for n in range(65)},
    ],
)
def test_shapes(env):
    with pytest.raises(ValueError, match=r"^env"):
        check_env("vllm", env)


def test_approvals_are_capitals_with_one_star_at_the_end():
    for good in ("A", "A_*", "VLLM_9"):
        check_approval(good)
    for bad in ("*", "a", "A*B", "A**", ""):
        with pytest.raises(ValueError, match=r"security\.approved_env"):
            check_approval(bad)


def test_a_simulated_profile_brings_capyctls_own_variables():
    own = {"CAPYCTL_SIMULATED": "x"}
    simulated = attrs.evolve(PROFILE, env=own, source="simulated")
    assert resolve_env("vllm", simulated, {}) == own
    with pytest.raises(EnvRefused):
        resolve_env("vllm", attrs.evolve(PROFILE, env=own), {})
    with pytest.raises(EnvRefused):
        resolve_env("vllm", simulated, own)
