"""Which environment variables a profile or a deployment may give its engine. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from capyctl.domain.devices import Profile

NAMES_MAX = 64
VALUE_MAX_BYTES = 4096

FREE = frozenset(
    {
        "MAX_JOBS",
        "FLASHINFER_NVCC_THREADS",
        "TOKENIZERS_PARALLELISM",
        "PYTHONUNBUFFERED",
        "RUST_LOG",
    }
)
"""Settable by a deployment without approval."""

RESERVED_PREFIXES = ("NCCL_", "GLOO_", "MASTER_", "CAPYCTL_", "LD_", "PYTHON")

_RESERVED_NAMES = """
    VLLM_HOST_IP SGLANG_HOST_IP HOST_IP SGLANG_LOCAL_IP_NIC SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE
    TF_COMM_BACKEND TF_NCCL_LIB PATH CUDA_HOME CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HOME
    HF_HUB_OFFLINE TRANSFORMERS_OFFLINE VLLM_PLUGINS VLLM_SERVER_DEV_MODE VLLM_API_KEY VLLM_PORT
    VLLM_ALLOW_INSECURE_SERIALIZATION TORCH_EXTENSIONS_DIR TENSORFOLD_CUDA_MEMORY_LIMIT_GB
    TENSORFOLD_NO_UPDATE_CHECK
"""
RESERVED = frozenset(_RESERVED_NAMES.split())

LLAMA_RESERVED_PREFIXES = ("LLAMA_ARG_", "LLAMA_SERVER_", "AIP_")

_LLAMA_RESERVED_NAMES = """
    LLAMA_API_KEY LLAMA_CACHE XDG_CONFIG_HOME HOME HF_TOKEN MTMD_BACKEND_DEVICE GGML_CUDA_DEVICES
    GGML_CUDA_ENABLE_UNIFIED_MEMORY GGML_VK_VISIBLE_DEVICES GGML_VK_PREFER_HOST_MEMORY
    GGML_VK_ALLOW_SYSMEM_FALLBACK GGML_METAL_DEVICES GGML_OPENCL_PLATFORM GGML_OPENCL_DEVICE
    GGML_HEXAGON_DEVICES ONEAPI_DEVICE_SELECTOR GGML_BACKEND_PATH
"""
LLAMA_RESERVED = frozenset(_LLAMA_RESERVED_NAMES.split())

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_APPROVAL = re.compile(r"[A-Z0-9_]+\*?")


class EnvRefused(ValueError):
    """A variable may not be set. ``code`` names it, for example ``engine_env_reserved:HOME``."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def resolve_env(
    family: str,
    profile: Profile,
    document: Mapping[str, str],
    command_line: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The profile's and the deployment's variables in one mapping; the deployment's win.

    Names are upper-cased. A simulated profile's own are capyctl's and not looked at.

    Raises:
        EnvRefused: reserved, not approved, or given in the document and on the command line.
        ValueError: not a name, or a value that is too long or not one line.
    """
    simulated = profile.source == "simulated"
    fixed = dict(profile.env) if simulated else _checked(family, profile.env, "env")
    written = _checked(family, document, "engine_config.env")
    given = _checked(family, command_line or {}, "--engine-env")
    for name in written.keys() & given.keys():
        raise EnvRefused(
            f"engine_env_conflict:{name}", "set in the document and on the command line"
        )
    wanted = written | given
    for name in sorted(wanted):
        if name not in FREE and not approves(profile.approved_env, name):
            raise EnvRefused(
                f"engine_env_not_approved:{name}",
                f"profile {profile.name} does not name it in security.approved_env",
            )
    return fixed | wanted


def check_env(family: str, env: Mapping[str, str], where: str = "env") -> None:
    """Refuse reserved names and misshapen values of a profile's own environment.

    Raises:
        EnvRefused, ValueError: as :func:`resolve_env`.
    """
    _checked(family, env, where)


def check_approval(pattern: str) -> None:
    """Refuse what is not a name in capitals with at most one ``*`` at its end.

    Raises:
        ValueError: names `security.approved_env`.
    """
    if _APPROVAL.fullmatch(pattern) is None:
        raise ValueError(
            "security.approved_env: write capital letters, digits and _, with at most a "
            "single * at the end"
        )


def approves(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the approvals covers ``name``."""
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
    )


def is_reserved(family: str, name: str) -> bool:
    """Whether nobody but capyctl may set this upper-cased name."""
    if name == "PYTHONUNBUFFERED":
        return False
    if name in RESERVED or name.startswith(RESERVED_PREFIXES):
        return True
    if family != "llamacpp":
        return False
    return name in LLAMA_RESERVED or name.startswith(LLAMA_RESERVED_PREFIXES)


def _checked(family: str, env: Mapping[str, str], where: str) -> dict[str, str]:
    if len(env) > NAMES_MAX:
        raise ValueError(f"{where}: {len(env)} names, at most {NAMES_MAX} are taken")
    found: dict[str, str] = {}
    for name, value in env.items():
        upper = name.upper()
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{where}: {name[:64]!r} is not the name of a variable")
        if upper in found:
            raise ValueError(f"{where}: {upper} is given twice")
        if is_reserved(family, upper):
            raise EnvRefused(f"engine_env_reserved:{upper}", f"{where}: capyctl sets it itself")
        if len(value.encode()) > VALUE_MAX_BYTES or any(c in value for c in "\n\r\0"):
            raise ValueError(
                f"{where}.{upper}: the value must be one line of at most {VALUE_MAX_BYTES} bytes"
            )
        found[upper] = value
    return found
