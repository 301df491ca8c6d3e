"""The implementation under test: one named by the environment, or a simulated standalone.

``CAPYCTL_CONTRACT_URL`` (``http://127.0.0.1:7443``), ``_TOKEN``, ``_API_KEY`` and
``_INFERENCE_URL`` name another one; ``CAPYCTL_CONTRACT_MODELS`` is its models directory, in which
the cases write checkpoints. Without the last, only cases that need no model run.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.contract.fleet import Fleet
from tests.contract.speaking import Target
from tests.e2e.daemon import running, simulation

NAME = "CAPYCTL_CONTRACT_"
FAULTS = {
    "dies": {"faults": {"dies_while_loading": True}},
    "dies-once": {"faults": {"dies_while_loading": True, "first_launches": 1}},
    "slow": {"load_s": 3.0},
    "no-park": {"faults": {"refuses_park": True}},
    "dies-at-token": {"faults": {"dies_at_token": 2, "first_launches": 1}},
}
"""Behaviours of the simulated engines, by the name of the model's directory."""


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.slow)


def foreign_target():
    """The implementation that the environment names; None when it names none."""
    url = os.environ.get(f"{NAME}URL")
    if url is None:
        return None
    management = urlsplit(url)
    inference = urlsplit(os.environ.get(f"{NAME}INFERENCE_URL", "http://127.0.0.1:8443"))
    return Target(
        host=management.hostname,
        port=management.port,
        token=os.environ[f"{NAME}TOKEN"],
        api_key=os.environ[f"{NAME}API_KEY"],
        inference=(inference.hostname, inference.port),
    )


@pytest.fixture(scope="session")
def implementation(tmp_path_factory):
    """The target, its models directory or None, and the daemon or None."""
    foreign = foreign_target()
    if foreign is not None:
        models = os.environ.get(f"{NAME}MODELS")
        yield foreign, None if models is None else Path(models), None
        return
    root = tmp_path_factory.mktemp("contract")
    simulate = simulation(gpus=4, memory="80GiB", ram="1TiB", models=FAULTS)
    with running(root, simulate=simulate) as daemon:
        inference = urlsplit(daemon.base_url)
        target = Target(
            host="127.0.0.1",
            port=daemon.management_port,
            token=daemon.token,
            api_key=daemon.key,
            inference=(inference.hostname, inference.port),
        )
        yield target, daemon.models, daemon


@pytest.fixture(scope="session")
def target(implementation):
    return implementation[0]


@pytest.fixture
def fleet(implementation):
    """Deployments of this test alone; taken away at its end."""
    target, models, _ = implementation
    if models is None:
        pytest.skip(f"{NAME}MODELS is not set: no model can be made")
    fleet = Fleet(target, models)
    yield fleet
    fleet.clear()


@pytest.fixture
def simulated(implementation):
    """Only where the engines misbehave on demand."""
    if implementation[2] is None:
        pytest.skip("only simulated engines fail on demand")


@pytest.fixture(scope="module")
def stopped(implementation):
    """One deployment that nobody starts, for the cases that only need its id; with its fleet."""
    target, models, _ = implementation
    if models is None:
        pytest.skip(f"{NAME}MODELS is not set: no model can be made")
    fleet = Fleet(target, models)
    yield fleet, fleet.create()
    fleet.clear()
