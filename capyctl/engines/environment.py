"""The closed environment that an engine is started with: nothing of the caller's is in it."""

from __future__ import annotations

import os.path
from collections.abc import Mapping

from capyctl.domain.launches import LaunchOrder
from capyctl.domain.units import GIB
from capyctl.engines.closed_path import SYSTEM_PATH
from capyctl.engines.surroundings import Surroundings

JOB_BYTES = 8 * GIB
"""Memory that one compiler of a kernel build may take."""

CUDA_BYTES = 5 * GIB // 4
"""Context and graphs, charged beside the request."""

SINGLE_RANK_PINS: Mapping[str, str] = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
}


def search_path(order: LaunchOrder) -> str:
    """PATH: the engine's own folder, the CUDA toolkit, the system."""
    folders = [os.path.dirname(order.engine.executable[0])]
    if order.engine.cuda_home is not None:
        folders.append(os.path.join(order.engine.cuda_home, "bin"))
    return ":".join([*folders, *SYSTEM_PATH])


def shared_env(order: LaunchOrder, surroundings: Surroundings) -> dict[str, str]:
    """Search path, GPU and log: what every engine gets.

    Raises:
        ValueError: the machine has GPUs and the order names none of them.
    """
    env = {"PATH": search_path(order), "CAPYCTL_ENGINE_LOG": surroundings.log_path(order)}
    if order.engine.cuda_home is not None:
        env["CUDA_HOME"] = order.engine.cuda_home
    env.update(device_env(order, surroundings))
    return env


def device_env(order: LaunchOrder, surroundings: Surroundings) -> dict[str, str]:
    """Which GPUs the engine may see, by UUID, else by index in bus order."""
    devices = order.device_uuids
    if not devices:
        if surroundings.shape.gpus:
            raise ValueError("devices: neither UUID nor index of the engine's GPU is known")
        return {}
    if all(device.isdigit() for device in devices):
        return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)}


def build_env(order: LaunchOrder, surroundings: Surroundings) -> dict[str, str]:
    """Bounds on the compilers that Python engines start for their kernels."""
    unified_bytes = 0
    if surroundings.shape.unified and order.engine.request_bytes is not None:
        unified_bytes = order.engine.request_bytes + CUDA_BYTES
    available_bytes = surroundings.available_bytes()
    jobs = 1
    if available_bytes is not None:
        jobs = max_jobs(available_bytes, unified_bytes, surroundings.cpu_count)
    return {"MAX_JOBS": str(jobs), "FLASHINFER_NVCC_THREADS": "1"}


def max_jobs(available_bytes: int, unified_ready_bytes: int, cpu_count: int) -> int:
    """Compilers at a time: 8 GiB each of what the engine leaves free, within 1 and the CPUs."""
    fitting = (available_bytes - unified_ready_bytes) // JOB_BYTES
    return max(1, min(fitting, cpu_count))
