import pytest

from capyctl.domain.units import GIB
from capyctl.engines.environment import build_env, max_jobs
from tests.engines_unit.scenes import order, surroundings


@pytest.mark.parametrize(
    ("available_gib", "ready_gib", "cpus", "jobs"),
    [(40, 0, 16, 5), (40, 0, 4, 4), (47, 0, 16, 5), (7, 0, 16, 1), (40, 20, 16, 2), (8, 40, 16, 1)],
)
def test_compilers_fit_into_what_the_engine_leaves(available_gib, ready_gib, cpus, jobs):
    assert max_jobs(available_gib * GIB, ready_gib * GIB, cpus) == jobs


def test_only_unified_memory_is_shared_with_the_engine():
    settings = {"request_bytes": 20 * GIB}

    assert build_env(order(**settings), surroundings("card"))["MAX_JOBS"] == "5"
    # 40 GiB available, less 20 GiB and the CUDA charge.
    assert build_env(order(**settings), surroundings("unified"))["MAX_JOBS"] == "2"


def test_unknown_memory_compiles_one_at_a_time():
    place = surroundings(available_bytes=lambda: None)

    assert build_env(order(), place)["MAX_JOBS"] == "1"
