"""Finding the model in a body, and putting another name in its place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.dataplane.bodies import (
    BadBody,
    read_form,
    read_json,
    with_form_model,
    with_json_model,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(
    st.dictionaries(st.text() | st.just("model"), JSON),
    st.text(min_size=1),
    st.text(),
    st.booleans(),
)
def test_only_the_top_level_model_is_replaced(other, model, new, ascii_only):
    whole = {**other, "model": model}
    text = json.dumps(whole, ensure_ascii=ascii_only)
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return
    assert read_json(body).model == model

    replaced = with_json_model(body, new)
    assert json.loads(replaced) == {**whole, "model": new}
    marker = with_json_model(replaced, model)
    assert json.loads(marker) == whole


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a","model":"b"}', b'{"model":"a","model":"N"}'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"N"}'),
        (
            b'{"x":{"model":"a"},"y":["model","a"],"z":"model","model":"a"}',
            b'{"x":{"model":"a"},"y":["model","a"],"z":"model","model":"N"}',
        ),
        (b'{ "model"\n:\t"a\\"}" , "n": 1.50 }', b'{ "model"\n:\t"N" , "n": 1.50 }'),
        (bytearray(b'{"model":"a"}'), b'{"model":"N"}'),
    ],
)
def test_the_rest_keeps_its_bytes(body, expected):
    assert with_json_model(body, "N") == expected


def test_stream_is_only_true():
    assert read_json(b'{"model":"m","stream":true}').streams
    for value in (b"false", b"null", b'"true"', b"1", b"{}"):
        assert not read_json(b'{"model":"m","stream":' + value + b"}").streams


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n'
    b"model\r\n--y\r\n\r\n"
    b"--x\r\nContent-Type: text/plain\r\ncontent-disposition: form-data; name=model\r\n\r\nold\r\n"
    b'--x\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n--x--\r\n'
)


@pytest.mark.parametrize("boundary", [b"x", b'"x"', b"x; charset=utf-8"])
def test_fields_of_a_form(boundary):
    form = read_form(b"multipart/form-data; boundary=" + boundary, FORM)
    assert (form.model, form.streams) == ("old", True)
    assert with_form_model(FORM, form.model_span, "new") == FORM.replace(b"old", b"new")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (b"application/json", FORM),
        (b"multipart/form-data", FORM),
        (b"multipart/form-data; boundary=zz", FORM),
        (b"multipart/form-data; boundary=x", b""),
        (b"multipart/form-data; boundary=x", FORM[:100]),
        (b"multipart/form-data; boundary=x", FORM.replace(b"old", b"")),
        (b"multipart/form-data; boundary=x", FORM.replace(b"old", b"\xff")),
        (b"multipart/form-data; boundary=x", FORM.replace(b"name=model", b"name=other")),
        (b"multipart/form-data; boundary=x", b"--x\r\nA: b\r\n\r\n\r\n" * 200 + b"--x--"),
    ],
)
def test_forms_that_cannot_be_routed(content_type, body):
    with pytest.raises(BadBody):
        read_form(content_type, body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\xef\xbb\xbf{}", "it begins with a byte order mark"),
        (b'{"model":"m"', "it ends in the middle of a value"),
        (b'{"model":"m\\ud800"}', "half of a pair"),
        (b'{"model":"m"} x', "something follows the object"),
        (b'{"model":"a\xff"}', "the byte 0xff at position 11 is not UTF-8"),
        (b'{"model":"a\x01"}', "the byte 0x01 at position 11 does not belong there"),
        (b'{"model":"m","a":NaN}', "'N' at position 17 does not belong there"),
        (b"{'model':1}", "object keys must be strings"),
    ],
)
def test_a_body_that_is_no_json_is_told_what_is_wrong_with_it(body, why):
    with pytest.raises(BadBody) as refused:
        read_json(bytearray(body))
    assert why in refused.value.message
