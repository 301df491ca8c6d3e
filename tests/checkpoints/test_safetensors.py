import io
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.checkpoints.headers import HeaderError
from capyctl.checkpoints.safetensors import (
    attention_of,
    indexed_names,
    read_json,
    read_weights_bytes,
    weight_names,
)

PLAIN = {
    "model_type": "qwen3",
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "hidden_size": 1_024,
    "max_position_embeddings": 40_960,
}


def measured(header: object, data_bytes: int = 100) -> int:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = struct.pack("<Q", len(encoded)) + encoded
    return read_weights_bytes(io.BytesIO(file), len(file) + data_bytes)


def tensor(begin, end):
    return {"dtype": "BF16", "shape": [1], "data_offsets": [begin, end]}


def test_weights_are_the_sum_of_the_offsets():
    header = {"__metadata__": {"format": "pt"}, "a": tensor(0, 40), "b": tensor(40, 90)}

    assert measured(header) == 90


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"[]", "not a JSON object"),
        (b"{", "not JSON"),
        (b'{"a":"\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ({"a": 1}, "no data_offsets"),
        ({"a": {"data_offsets": [1]}}, "no data_offsets"),
        ({"a": {"data_offsets": [0, True]}}, "no data_offsets"),
        ({"a": {"data_offsets": [0.5, 1]}}, "no data_offsets"),
        ({"a": tensor(5, 4)}, "lies at 5-4"),
        ({"a": tensor(0, 101)}, "lies at 0-101 of 100 bytes"),
    ],
)
def test_headers_that_make_no_sense(header, said):
    with pytest.raises(HeaderError, match=said):
        measured(header)


@pytest.mark.parametrize(("length", "size"), [(25_000_001, 10**9), (93, 100), (1 << 63, 100)])
def test_a_header_longer_than_allowed_is_not_read(length, size):
    with pytest.raises(HeaderError, match=f"header of {length} bytes"):
        read_weights_bytes(io.BytesIO(struct.pack("<Q", length)), size)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_no_bytes_break_the_reader(file, size):
    try:
        found = read_weights_bytes(io.BytesIO(file), size)
    except HeaderError:
        return
    assert found >= 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*PLAIN, "head_dim", "text_config", "layer_types"]), JSON))
def test_no_configuration_breaks_the_reader(config):
    try:
        shape = attention_of(config)
    except HeaderError:
        return
    assert all(number >= 1 for layer in shape.layers_kv for number in layer)


def test_names_that_no_engine_loads_are_left_out():
    names = ["a.safetensors", "original/a.safetensors", "consolidated.safetensors", "b.bin"]

    assert weight_names(names) == ("a.safetensors",)


def test_plain_attention():
    shape = attention_of(PLAIN)

    assert shape.layers_kv == ((8, 64, 64),) * 3
    assert shape.context_length == 40_960


def test_the_text_part_of_a_vision_model_counts():
    assert attention_of({"text_config": PLAIN | {"head_dim": 128}}).layers_kv[0] == (8, 128, 128)


def test_a_window_that_is_not_used_is_none():
    unused = PLAIN | {"sliding_window": 4_096, "use_sliding_window": False}

    assert len(attention_of(unused).layers_kv) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sliding_window": 4_096}, "sliding-window"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "several kinds"),
        ({"mamba_d_state": 128}, "recurrent"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"head_dim": "x"}, "head_dim"),
    ],
)
def test_what_is_not_plain_is_refused_in_words(change, said):
    with pytest.raises(HeaderError, match=said):
        attention_of(PLAIN | change)


def test_an_index_names_its_shards():
    assert indexed_names({"weight_map": {"a": "1", "b": "2", "c": "1"}}) == {"1", "2"}


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_an_index_without_a_map(index):
    with pytest.raises(HeaderError, match="no weight_map"):
        indexed_names(index)


def test_json_that_is_none():
    with pytest.raises(HeaderError, match=r"config\.json is not JSON"):
        read_json(b"\xff", "config.json")
