"""Declared digests that a host takes as measured, once, and never for files that changed."""

import os

import pytest

from capyctl.checkpoints.digest import LocalCheckpoints
from capyctl.simulated.checkpoint_writer import write_checkpoint

DECLARED = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


@pytest.fixture
def model(tmp_path):
    folder = write_checkpoint(tmp_path / "m", weights_bytes=100_000)
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    return str(folder)


def trusting(tmp_path):
    return LocalCheckpoints(tmp_path / "cache", trust_declared=True)


def touch(model):
    path = os.path.join(model, "tokenizer_config.json")
    with open(path, "a") as file:
        file.write(" ")


async def test_a_declared_digest_is_taken_without_reading_the_weights(tmp_path, model):
    checkpoints = trusting(tmp_path)
    facts = await checkpoints.measure(model, declared=DECLARED)

    assert (facts.digest, facts.provenance) == (DECLARED, "declared_trusted")
    assert facts.weights_bytes == 100_000
    assert checkpoints.hashed_bytes == 0
    assert await checkpoints.digest(model) == DECLARED
    assert await trusting(tmp_path).digest(model) == DECLARED


async def test_files_that_changed_are_measured_in_full(tmp_path, model):
    checkpoints = trusting(tmp_path)
    await checkpoints.measure(model, declared=DECLARED)
    touch(model)
    measured = await checkpoints.measure(model, declared=DECLARED)
    true = await LocalCheckpoints().measure(model)

    assert (measured.digest, measured.provenance) == (true.digest, "measured")
    assert await checkpoints.digest(model) == true.digest
    assert await trusting(tmp_path).digest(model) == true.digest


async def test_another_declaration_is_another_trust(tmp_path, model):
    checkpoints = trusting(tmp_path)
    await checkpoints.measure(model, declared=DECLARED)

    assert (await checkpoints.measure(model, declared=OTHER)).digest == OTHER
    assert await checkpoints.digest(model) == OTHER


async def test_what_is_known_already_is_not_trusted(tmp_path, model):
    checkpoints = trusting(tmp_path)
    true, hashed_bytes = "", -1
    while checkpoints.hashed_bytes != hashed_bytes:  # files this young are not remembered
        hashed_bytes = checkpoints.hashed_bytes
        true = (await checkpoints.measure(model)).digest

    assert (await checkpoints.measure(model, declared=DECLARED)).digest == true


@pytest.mark.parametrize("declared", [None, "measured", "sha256:" + "A" * 64, "sha256:ab"])
async def test_only_canonical_digests_are_trusted(tmp_path, model, declared):
    facts = await trusting(tmp_path).measure(model, declared=declared)

    assert facts.provenance == "measured"


async def test_without_the_policy_a_declaration_is_only_an_expectation(model):
    facts = await LocalCheckpoints().measure(model, declared=DECLARED)

    assert facts.provenance == "measured"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"/m": 3}', '{"/m": ["x", "y"]}'])
async def test_a_damaged_record_trusts_nothing(tmp_path, model, text):
    await trusting(tmp_path).measure(model, declared=DECLARED)
    (tmp_path / "cache" / "trusted-digests.json").write_text(text)
    true = await LocalCheckpoints().measure(model)

    assert await trusting(tmp_path).digest(model) == true.digest


async def test_a_record_that_others_may_write_trusts_nothing(tmp_path, model):
    await trusting(tmp_path).measure(model, declared=DECLARED)
    (tmp_path / "cache" / "trusted-digests.json").chmod(0o666)
    true = await LocalCheckpoints().measure(model)

    assert await trusting(tmp_path).digest(model) == true.digest
