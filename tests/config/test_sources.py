"""Remote sources in documents: their keys, where their files will lie, and the host's policy."""

from __future__ import annotations

import attrs
import pytest

from capyctl.config.sources import SourcePolicy
from capyctl.domain.checkpoints import SourceKind, host_allowed
from capyctl.domain.errors import Refused
from tests.config.documents import COMMIT, DEFAULTS, MINIMAL, complete

SHA = "ab" * 32
URL = "https://files.example/m/model.gguf"


def spec_of(model, **policy):
    defaults = attrs.evolve(DEFAULTS, sources=SourcePolicy(**policy))
    return complete({**MINIMAL, "model": model}, defaults=defaults)


def http(**fields):
    return {"source": {"type": "http", "sha256": SHA, **fields}}


def hub(**fields):
    return {"source": {"huggingface": {"repo": "Own/Mod.el", "revision": COMMIT, **fields}}}


@pytest.mark.parametrize("model", [{"hf": f"Own/Mod.el@{COMMIT}"}, hub(files=None), hub()])
def test_a_commit_of_the_hub_has_one_key_in_every_spelling(model):
    spec = spec_of(model)

    assert spec.source is not None
    assert spec.source.key == f"sources/huggingface/Own--Mod.el@{COMMIT}"
    assert (spec.source.repository, spec.source.commit) == ("Own/Mod.el", COMMIT)
    assert spec.model_path == f"/models/{spec.source.key}"


def test_patterns_are_part_of_the_key_whatever_their_order():
    one, two = (spec_of(hub(files=f)).source for f in (["b*", "a"], ["a", "b*", "a"]))

    assert one == two
    assert one.key.startswith(f"sources/huggingface/Own--Mod.el@{COMMIT}-")
    assert len(one.key.rpartition("-")[2]) == 12
    assert one.files == ("a", "b*")


@pytest.mark.parametrize(("archive", "ending"), [({}, ""), ({"archive": "tar"}, "-tar")])
def test_the_key_of_a_download_is_its_hash(archive, ending):
    spec = spec_of(http(url=URL, **archive))

    assert spec.source.kind is SourceKind.HTTP
    assert spec.source.key == f"sources/http/{SHA}{ending}"
    assert spec.source.archive is bool(archive)


@pytest.mark.parametrize(
    ("root", "there"), [("/big", "/big"), ("inner", "/models/inner"), (None, "/models")]
)
def test_downloads_lie_where_the_host_wants_them(root, there):
    spec = spec_of(http(url=URL), root=root)

    assert spec.model_path == f"{there}/sources/http/{SHA}"


@pytest.mark.parametrize(
    ("model", "policy"),
    [
        (http(url=URL), {"http": False}),
        (http(url_ref="secret://place"), {"http": False}),
        (http(url="http://files.example/x"), {}),
        (http(url=URL), {"allowed_hosts": ("example", "*.files.example")}),
        (hub(), {"huggingface": False}),
        ({"hf": f"a/b@{COMMIT}"}, {"huggingface": False}),
        ({"hf": f"a/b@{COMMIT}"}, {"allowed_hosts": ("files.example",)}),
    ],
)
def test_what_the_host_does_not_fetch_is_denied(model, policy):
    with pytest.raises(Refused) as refused:
        spec_of(model, **policy)

    assert refused.value.code == "invalid_config"
    assert refused.value.details == {"path": "model.source"}
    assert "source denied by host policy" in refused.value.message
    assert "example" not in refused.value.message


def test_what_the_host_does_fetch_is_taken():
    plain = spec_of(http(url="http://files.example/x"), plain_http=True)
    named = spec_of(http(url=URL), allowed_hosts=("other", "files.example"))
    hidden = spec_of(http(url_ref="secret://place"), allowed_hosts=())

    assert plain.source.url == "http://files.example/x"
    assert named.source.url == URL
    assert hidden.source.url_ref == "secret://place"
    assert URL not in repr(named.source)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://files.example/x",
        "https:///x",
        "https://user:pass@files.example/x",
        "https://files.example/a b",
        "https://files.example:99999/x",
        "https://files.example/\n",
        "https://[::1/x",
    ],
)
def test_an_address_that_is_none_is_refused_without_showing_it(url):
    with pytest.raises(Refused) as refused:
        spec_of(http(url=url))

    assert refused.value.code == "invalid_config"
    assert "files.example" not in refused.value.message


@pytest.mark.parametrize(
    ("host", "allowed", "may"),
    [
        ("a.example", None, True),
        ("A.Example.", ("a.example",), True),
        ("b.a.example", ("a.example",), False),
        ("b.a.example", ("*.a.example",), True),
        ("a.example", ("*.a.example",), False),
        ("ba.example", ("*.a.example",), False),
        ("", (), False),
    ],
)
def test_hosts_are_allowed_by_name_or_below_a_star(host, allowed, may):
    assert host_allowed(host, allowed) is may
