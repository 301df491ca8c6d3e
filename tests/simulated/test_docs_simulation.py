"""docs/simulation.md keeps step with the program: its tables, its document, its snippet."""

import re
import sys
from pathlib import Path

import attrs
import pytest
import trio

from capyctl.checkpoints.digest import LocalCheckpoints
from capyctl.domain.units import MIB
from capyctl.simulated.behaviour import Behaviour, Faults
from capyctl.simulated.checkpoint_writer import write_checkpoint
from capyctl.simulated.document import read_file

TEXT = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


def block(language: str) -> str:
    return TEXT.split(f"```{language}\n")[1].split("```")[0]


@pytest.mark.parametrize("kind", [Behaviour, Faults])
def test_every_field_is_in_a_table(kind):
    cells = " ".join(line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `"))
    told = {name.split(":")[0] for name in re.findall(r"`([^`]+)`", cells)}
    fields = {field.name.removesuffix("_bytes") for field in attrs.fields(kind)} - {"faults"}

    assert fields - told == set()


def test_the_example_is_a_document(tmp_path):
    path = tmp_path / "machine.yaml"
    path.write_text(block("yaml"))

    found = read_file(path)

    assert found.models["chat"].faults == Faults(dies_at_token=20, first_launches=1)
    # An answer that nothing cuts short has to come that far.
    assert found.models["chat"].faults.dies_at_token < Behaviour().reply_tokens
    assert found.models["chat"].load_s == 20


@pytest.mark.slow
async def test_the_snippet_recomputes_the_digest(tmp_path):
    model = write_checkpoint(tmp_path / "m", weights_bytes=65 * MIB)
    script = tmp_path / "digest.py"
    script.write_text(block("python"))

    printed = await trio.run_process([sys.executable, script, model], capture_stdout=True)
    told = printed.stdout.decode().strip()

    assert told == (await LocalCheckpoints().measure(str(model))).digest
