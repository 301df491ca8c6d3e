import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.checkpoints import gguf
from capyctl.checkpoints.gguf import GgufHeader, attention_of, read_header
from capyctl.checkpoints.headers import HeaderError
from capyctl.domain.checkpoints import AttentionShape

PLAIN = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 2,
    "qwen3.embedding_length": 64,
    "qwen3.context_length": 4_096,
    "qwen3.attention.head_count": 8,
    "qwen3.attention.head_count_kv": 2,
}


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def pair(key: str, value) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return (
            text(key)
            + struct.pack("<IIQ", 9, 5, len(value))
            + struct.pack(f"<{len(value)}i", *value)
        )
    return text(key) + struct.pack("<II", 4, value)


def written(values: dict, *, version=3, key_count=None) -> bytes:
    head = struct.pack("<IQQ", version, 1, len(values) if key_count is None else key_count)
    return b"GGUF" + head + b"".join(pair(key, value) for key, value in values.items())


def header(**changes) -> GgufHeader:
    values = PLAIN | {key.replace("__", "."): value for key, value in changes.items()}
    values = {key: value for key, value in values.items() if value is not None}
    return GgufHeader(version=3, tensor_count=1, values=values)


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_is_read(version):
    found = read_header(io.BytesIO(written(PLAIN, version=version)))

    assert found.values == PLAIN
    assert (found.architecture, found.version, found.tensor_count) == ("qwen3", version, 1)


def test_every_type_of_value_is_read():
    kinds = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q",
             12: "d"}  # fmt: skip
    pairs = [
        text(f"k{kind}") + struct.pack("<I", kind) + struct.pack(f"<{layout}", 1)
        for kind, layout in kinds.items()
    ]
    file = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)

    found = read_header(io.BytesIO(file)).values

    assert found == {f"k{kind}": 1 for kind in kinds}
    assert found["k7"] is True


def test_vocabularies_are_stepped_over():
    tokens = text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    scores = text("scores") + struct.pack("<IIQ", 9, 6, 5_000) + bytes(4 * 5_000)
    file = b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + tokens + scores + pair("after", 7)

    assert read_header(io.BytesIO(file)).values == {"after": 7}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (b"", "ends inside"),
        (b"GGML" + bytes(40), "does not start with GGUF"),
        (written({}, version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
        (written(PLAIN)[:-1], "ends inside"),
        (written({}, key_count=(1 << 20) + 1), "1048577 metadata keys"),
        (written({}, key_count=1) + struct.pack("<Q", 1 << 40), "a string of 1099511627776"),
        (written({}, key_count=1) + text("a") + struct.pack("<I", 13), "unknown type 13"),
        (
            written({}, key_count=1) + text("a") + struct.pack("<IIQ", 9, 0, (1 << 20) + 1),
            "an array of 1048577",
        ),
        (written({}, key_count=1) + text("a") + struct.pack("<IIQ", 9, 9, 1), "arrays of arrays"),
    ],
)
def test_bounds(file, said):
    with pytest.raises(HeaderError, match=said):
        read_header(io.BytesIO(file))


def test_metadata_as_a_whole_is_bounded(monkeypatch):
    monkeypatch.setattr(gguf, "METADATA_BYTES_MAX", 1 << 20)
    values = {f"k{number}": "x" * 600_000 for number in range(2)}

    with pytest.raises(HeaderError, match="more than 1 MiB"):
        read_header(io.BytesIO(written(values)))


@given(st.binary(max_size=200), st.integers(2, 3), st.integers(0, 3))
def test_no_bytes_break_the_reader(rest, version, keys):
    file = b"GGUF" + struct.pack("<IQQ", version, 0, keys) + rest
    try:
        found = read_header(io.BytesIO(file))
        attention_of(found)
    except HeaderError:
        return
    assert found.version == version


@given(st.data())
def test_a_damaged_header_is_read_or_refused(data):
    file = bytearray(written(PLAIN))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        shape = attention_of(read_header(io.BytesIO(bytes(file))))
    except HeaderError:
        return
    assert 1 <= len(shape.layers_kv) <= gguf.LAYERS_MAX


def test_a_plain_model():
    assert attention_of(header()) == AttentionShape(
        layers_kv=((2, 8, 8), (2, 8, 8)), context_length=4_096
    )


def test_lengths_that_are_stated_win():
    shape = attention_of(header(qwen3__attention__key_length=16, qwen3__attention__value_length=4))

    assert shape.layers_kv[0] == (2, 16, 4)


def test_heads_per_layer_and_layers_without_a_cache():
    shape = attention_of(header(qwen3__block_count=3, qwen3__attention__head_count_kv=(4, 0, 2)))

    assert shape.layers_kv == ((4, 8, 8), (2, 8, 8))


def test_without_key_value_heads_every_head_has_its_own():
    assert attention_of(header(qwen3__attention__head_count_kv=None)).layers_kv[0][0] == 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general__architecture": "mamba"}, "recurrent"),
        ({"general__architecture": "deepseek2"}, "latent attention"),
        ({"general__architecture": "clip"}, "projector"),
        ({"general__architecture": "nomic-bert"}, "embedding"),
        ({"general__architecture": "dream"}, "diffusion"),
        ({"general__architecture": "t5encoder"}, "encoder"),
        ({"general__architecture": None}, "no general.architecture"),
        ({"qwen3__ssm__state_size": 16}, "hybrid"),
        ({"qwen3__attention__sliding_window": 512}, "sliding-window"),
        ({"qwen3__attention__kv_lora_rank": 512}, "latent attention"),
        ({"qwen3__attention__indexer__head_count": 4}, "indexer"),
        ({"qwen3__pooling_type": 1}, "embedding"),
        ({"qwen3__attention__causal": False}, "encoder"),
        ({"qwen3__block_count": None}, "no qwen3.block_count"),
        ({"qwen3__block_count": 5_000}, "5000"),
        ({"qwen3__block_count": True}, "True"),
        ({"qwen3__attention__head_count_kv": (1, 1, 1)}, "3 numbers for 2 layers"),
        ({"qwen3__attention__head_count_kv": (1, -1)}, "not a number from 0"),
        ({"qwen3__attention__head_count_kv": (0, 0)}, "no layer keeps"),
        ({"qwen3__attention__head_count": "8"}, "'8'"),
        ({"qwen3__context_length": 1 << 40}, "context_length"),
    ],
)
def test_what_is_not_calculable_is_refused_in_words(changes, said):
    with pytest.raises(HeaderError, match=said):
        attention_of(header(**changes))
