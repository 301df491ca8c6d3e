import json

import pytest

from capyctl.checkpoints.digest import LocalCheckpoints
from capyctl.checkpoints.gguf_files import shard_names
from capyctl.domain.units import GIB, MIB
from capyctl.simulated import checkpoint_writer
from capyctl.simulated.checkpoint_writer import write_checkpoint


async def measure(path, weights_file=None):
    return await LocalCheckpoints().measure(str(path), weights_file=weights_file)


@pytest.fixture
def gguf(tmp_path):
    """A folder and a function that puts small, valid GGUF files into it."""
    model = write_checkpoint(tmp_path / "made", weights_bytes=4_096, format="gguf").read_bytes()
    folder = tmp_path / "models"
    folder.mkdir()

    def put(*names):
        for name in names:
            (folder / name).write_bytes(model)
        return folder

    return put


@pytest.mark.parametrize("weights_bytes", [4_096, 8 * GIB + 1])
async def test_a_written_gguf_measures_as_asked(tmp_path, weights_bytes):
    model = write_checkpoint(tmp_path / "m", weights_bytes=weights_bytes, format="gguf")

    facts = await measure(model)

    assert (facts.format, facts.weights_bytes) == ("gguf", weights_bytes)
    assert (facts.weights_file, facts.model_type) == ("model.gguf", "llama")
    assert facts.attention is not None
    assert facts.attention.layers_kv == ((8, 128, 128),) * 32
    assert facts.attention.context_length == 32_768
    assert facts.attention_refused is None


@pytest.mark.slow
async def test_written_safetensors_measure_as_asked(tmp_path):
    model = write_checkpoint(tmp_path / "m", weights_bytes=90 * GIB, context_length=512)

    facts = await measure(model)

    assert (facts.format, facts.weights_bytes) == ("safetensors", 90 * GIB)
    assert len(list(model.glob("*.safetensors"))) == 3
    assert facts.weights_file is None
    assert facts.attention is not None
    assert facts.attention.context_length == 512


async def test_seeds_tell_models_of_one_size_apart(tmp_path):
    digests = [
        (await measure(write_checkpoint(tmp_path / str(at), weights_bytes=MIB, seed=seed))).digest
        for at, seed in enumerate([1, 1, 2])
    ]

    assert digests[0] == digests[1] != digests[2]


async def test_duplicates_beside_safetensors_do_not_count(tmp_path):
    model = write_checkpoint(tmp_path / "m", weights_bytes=MIB)
    (model / "original").mkdir()
    for name in ("consolidated.safetensors", "original/x.safetensors", "pytorch_model.bin"):
        (model / name).write_bytes(b"x" * 100)

    assert (await measure(model)).weights_bytes == MIB


async def test_shards_the_index_does_not_name_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "SHARD_BYTES", MIB)
    model = write_checkpoint(tmp_path / "m", weights_bytes=3 * MIB)
    stale = model / "old.safetensors"
    stale.write_bytes((model / "model-00001-of-00003.safetensors").read_bytes())

    assert (await measure(model)).weights_bytes == 3 * MIB


async def test_a_missing_shard_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "SHARD_BYTES", MIB)
    model = write_checkpoint(tmp_path / "m", weights_bytes=3 * MIB)
    (model / "model-00002-of-00003.safetensors").unlink()

    facts = await measure(model)

    assert facts.attention is None
    assert facts.attention_refused == (
        "1 of 3 shards missing, first model-00002-of-00003.safetensors"
    )


async def test_a_damaged_header_counts_with_its_file(tmp_path):
    model = write_checkpoint(tmp_path / "m", weights_bytes=MIB)
    (model / "model.safetensors").write_bytes(b"x" * 1_000)

    facts = await measure(model)

    assert facts.weights_bytes == 1_000
    assert facts.attention is None
    assert facts.attention_refused is not None
    assert facts.attention_refused.startswith("model.safetensors: a safetensors header of ")


async def test_a_model_without_a_configuration(tmp_path):
    model = write_checkpoint(tmp_path / "m", weights_bytes=MIB)
    (model / "config.json").unlink()

    facts = await measure(model)

    assert facts.attention_refused == "there is no config.json"
    assert facts.model_type is None


async def test_latent_attention_is_refused_but_measured(tmp_path):
    model = write_checkpoint(tmp_path / "m", weights_bytes=MIB)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps(config | {"model_type": "deepseek_v3", "kv_lora_rank": 512})
    )

    facts = await measure(model)

    assert (facts.weights_bytes, facts.model_type) == (MIB, "deepseek_v3")
    assert facts.attention is None
    assert facts.attention_refused == "deepseek_v3 has latent attention (MLA) (kv_lora_rank)"


async def test_an_unknown_format_counts_its_pickles(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 70)
    (tmp_path / "readme.md").write_bytes(b"x" * 9)

    facts = await measure(tmp_path)

    assert (facts.format, facts.weights_bytes, facts.attention) == ("unknown", 70, None)


async def test_the_single_model_beside_a_projector_is_chosen(gguf):
    facts = await measure(gguf("m.gguf", "mmproj-m.gguf"))

    assert (facts.weights_file, facts.weights_bytes) == ("m.gguf", 4_096)


async def test_of_several_models_one_must_be_named(gguf):
    folder = gguf("a.gguf", "b.gguf")

    unclear = await measure(folder)
    named = await measure(folder, "b.gguf")

    assert unclear.weights_file is None
    assert unclear.attention_refused == "several GGUF models: a.gguf, b.gguf; name one of them"
    assert (named.weights_file, named.weights_bytes) == ("b.gguf", 4_096)
    assert named.digest == unclear.digest


async def test_a_split_set_is_one_model(gguf):
    names = shard_names("m-00001-of-00003.gguf")
    folder = gguf(*names)

    whole, by_file = await measure(folder), await measure(folder / names[0])

    assert (whole.weights_file, whole.weights_bytes) == (names[0], 3 * 4_096)
    assert (by_file.weights_file, by_file.weights_bytes) == (names[0], 3 * 4_096)
    assert by_file.digest == whole.digest


@pytest.mark.parametrize(
    ("put", "wanted", "said"),
    [
        (["m-00001-of-00002.gguf"], None, "1 of 2 shards missing, first m-00002-of-00002.gguf"),
        (
            ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"],
            "m-00002-of-00002.gguf",
            "m-00002-of-00002.gguf is a later shard; name m-00001-of-00002.gguf",
        ),
        (["mmproj.gguf"], None, "only projectors: mmproj.gguf"),
        (["mmproj.gguf", "m.gguf"], "mmproj.gguf", "mmproj.gguf is a projector, not a model"),
        (["m.gguf"], "n.gguf", "n.gguf is not among the GGUF files: m.gguf"),
    ],
)
async def test_unclear_sets_say_why(gguf, put, wanted, said):
    facts = await measure(gguf(*put), wanted)

    assert facts.attention_refused == said
    assert facts.attention is None


async def test_one_file_is_measured_alone(gguf):
    folder = gguf("a.gguf", "b.gguf")

    facts = await measure(folder / "a.gguf")

    assert [row[0] for row in facts.stat_identity] == ["a.gguf"]
    assert (facts.weights_file, facts.weights_bytes) == ("a.gguf", 4_096)


@pytest.mark.parametrize("size", [0, 4_095, (8 << 40) + 1])
def test_sizes_that_cannot_be_written(tmp_path, size):
    with pytest.raises(ValueError, match=f"weights of {size} bytes"):
        write_checkpoint(tmp_path, weights_bytes=size)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "precious").touch()

    with pytest.raises(FileExistsError, match="not empty"):
        write_checkpoint(tmp_path, weights_bytes=MIB)


@pytest.mark.parametrize("name", ["m.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf"])
def test_names_of_no_set(name):
    assert shard_names(name) == ()
