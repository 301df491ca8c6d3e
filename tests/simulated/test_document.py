import json

import pytest

from capyctl.domain.units import GIB
from capyctl.simulated.behaviour import BadDocument, Behaviour, Faults
from capyctl.simulated.document import parse_simulate, read_document, write_document


def test_nothing_stated_is_one_card_of_24_gib():
    found = parse_simulate("")

    assert [gpu.total_bytes for gpu in found.gpus] == [24 * GIB]
    assert (found.ram_bytes, found.unified) == (256 * GIB, False)
    assert found.engines == Behaviour()


def test_a_short_text():
    found = parse_simulate("gpus=2, memory=80GiB,ram=512GiB")

    assert [(gpu.id, gpu.total_bytes) for gpu in found.gpus] == [
        ("gpu0", 80 * GIB),
        ("gpu1", 80 * GIB),
    ]
    assert len({gpu.uuid for gpu in found.gpus}) == 2
    assert found.ram_bytes == 512 * GIB


@pytest.mark.parametrize("text", ["unified=128GiB", "unified=yes,ram=128GiB"])
def test_a_unified_machine(text):
    found = parse_simulate(text)

    assert (found.unified, found.ram_bytes) == (True, 128 * GIB)
    assert [gpu.total_bytes for gpu in found.gpus] == [128 * GIB]


def test_a_machine_without_a_card():
    assert parse_simulate("gpus=0,ram=64GiB").gpus == ()


DOCUMENT = """
gpus:
  - memory: 48GiB
    name: Big
  - memory: 24GiB
    used: 1GiB
ram: 128GiB
engines:
  load_s: 2
  residue: 700MiB
models:
  chat:
    tokens_per_s: 10
    faults:
      dies_at_token: 3
  /models/x:
    load_s: 9
"""


def test_a_file(tmp_path):
    path = tmp_path / "machine.yaml"
    path.write_text(DOCUMENT)

    found = parse_simulate(str(path))

    assert [(gpu.name, gpu.total_bytes, gpu.used_bytes) for gpu in found.gpus] == [
        ("Big", 48 * GIB, 0),
        ("Simulated 24.0 GiB", 24 * GIB, GIB),
    ]
    chat = found.behaviour_of("/any", ["chat"])
    assert (chat.load_s, chat.tokens_per_s, chat.faults) == (2.0, 10.0, Faults(dies_at_token=3))
    assert chat.residue_bytes == 700 << 20
    assert found.behaviour_of("/models/x/").load_s == 9.0
    assert found.behaviour_of("/elsewhere/chat").tokens_per_s == 10.0
    assert found.behaviour_of("/elsewhere/other").load_s == 2.0


def test_what_is_written_reads_back_the_same(tmp_path):
    path = tmp_path / "machine.yaml"
    path.write_text(DOCUMENT)
    for found in (parse_simulate(str(path)), parse_simulate("unified=64GiB")):
        assert parse_simulate(json.dumps(write_document(found))) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cards=2", "'cards=2' is not known"),
        ("gpus=2,gpus=3", "gpus is stated twice"),
        ("gpus=two", "gpus is 'two'"),
        ("gpus=65", "from 0 to 64"),
        ("memory=24", "memory is '24'; a size such as 24GiB"),
        ("memory=1GiB", r"memory is 1\.0 GiB; at least 2\.0 GiB"),
        ("unified=64GiB,ram=64GiB", "unified and ram both state"),
        ("unified=64GiB,memory=8GiB", "memory is that of a card"),
        ("unified=64GiB,gpus=2", "a unified machine has one"),
        ("/absent.yaml", r"/absent\.yaml: No such file"),
        ("{", "is not JSON"),
        ("{" * 100_000, "is not JSON"),
        ('{"ram": "1TiB", "ram": "2TiB"}', "ram is stated twice"),
        ('{"models": {"a": {"load_s": 1, "load_s": 2}}}', "load_s is stated twice"),
        ('{"models": {"a": {}, "a": {}}}', "a is stated twice"),
        ("{" + " " * (1 << 20) + "}", "the document is larger than 1048576 bytes"),
        ("memory=99999999TiB", r"memory is '99999999TiB'; at most 1048576\.0 GiB"),
        ("ram=" + "9" * 400 + "GiB", r"ram is '9{59}…; a size such as"),
        ("gpus=" + "9" * 5000, r"gpus is '9{59}…; a whole number from 0 to 64"),
        ('{"ram": ' + "9" * 4000 + "}", "ram is a number of more than 24 digits; at most"),
        ('{"ram": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_texts_that_are_refused(text, said):
    with pytest.raises(BadDocument, match=said):
        parse_simulate(text)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "a document is a mapping"),
        ({"gpu": 1}, "gpu is not known; known are gpus"),
        ({"gpus": [{"size": 1}]}, r"gpus\[0\] may have memory, name and used"),
        ({"gpus": [{"used": "30GiB"}]}, r"gpus\[0\]\.used is 30\.0 GiB of 24\.0 GiB"),
        ({"engines": {"load": 1}}, r"engines\.load is not known; known are "),
        ({"engines": {"load_s": -1}}, r"engines\.load_s is -1; a number from 0 to 86400"),
        ({"engines": {"load_s": True}}, r"engines\.load_s is True"),
        ({"engines": {"reply_tokens": 0}}, r"engines\.reply_tokens is 0; a whole number from 1"),
        ({"engines": {"faults": {"boom": 1}}}, r"engines\.faults\.boom is not known"),
        ({"models": {"a": {"faults": {"never_ready": 1}}}}, r"models\.a\.faults\.never_ready is 1"),
        ({"models": {"a": {"faults": {"exit_code": 256}}}}, r"exit_code is 256.*from 0 to 255"),
        ({"models": {"a": []}}, r"models\.a must be a mapping"),
        ({"models": [1]}, "models must be a mapping"),
        ({"models": {str(n): {} for n in range(1025)}}, "models has 1025 entries; at most 1024"),
        ({"engines": {"weights": 2**50 + 1}}, r"engines\.weights is 1125899906842625; at most"),
        ({"engines": {"extra": "2000TiB"}}, r"engines\.extra is '2000TiB'; at most"),
        ({"gpus": [{"used": 10**30}]}, r"gpus\[0\]\.used is a number of more than 24 digits"),
        ({"gpus": [{"name": "x" * 201}]}, r"gpus\[0\]\.name is 'x{59}…; a text of 1 to 200"),
        ({"gpus": [{"name": 7}]}, r"gpus\[0\]\.name is 7; a text of 1 to 200 characters"),
        ({"engines": {"load_s": [1] * 100_000}}, r"engines\.load_s is a list; a number"),
    ],
)
def test_documents_that_are_refused_name_the_key(document, said):
    with pytest.raises(BadDocument, match=said):
        read_document(document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ram: 1TiB\nram: 2TiB\n", "ram is stated twice"),
        ("models:\n  a: {load_s: 1, load_s: 2}\n", "load_s is stated twice"),
        ("engines: &e {load_s: 1}\nmodels: {a: *e}\n", "has an alias"),
        ("ram: " + "9" * 5000 + "\n", "is not YAML"),
    ],
)
def test_files_with_more_than_one_reading(tmp_path, text, said):
    path = tmp_path / "x.yaml"
    path.write_text(text)

    with pytest.raises(BadDocument, match=said):
        parse_simulate(str(path))


@pytest.mark.parametrize("text", ["a: [", "\t", "- 1", "a: !!python/object:x {}"])
def test_files_that_are_no_documents(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)

    with pytest.raises(BadDocument):
        parse_simulate(str(path))


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(BadDocument, match="not UTF-8"):
        parse_simulate(str(path))
