"""Which role a command talks to."""

import io

import pytest

from capyctl.cli.main import main
from capyctl.cli.surroundings import Surroundings
from tests.cli.fake_management import Bench, FakeManagement


def run(environ, *words):
    err = io.StringIO()
    status = main(words, Surroundings(environ=environ, out=io.StringIO(), err=err))
    return status, err.getvalue()


LIST = ("list", "deployments")


@pytest.fixture
def other():
    with FakeManagement() as fake:
        yield fake


def test_the_variable_goes_before_the_record(management, other, tmp_path):
    bench = Bench(
        tmp_path / "state", management.address, environ={"CAPYCTL_MANAGEMENT_ADDR": other.address}
    )

    assert bench.run(*LIST).status == 0
    assert (len(management.received), len(other.received)) == (0, 1)


def test_the_record_goes_before_the_document(management, tmp_path):
    bench = Bench(tmp_path / "state", management.address)
    document(bench, "127.0.0.1:1")

    assert bench.run(*LIST).status == 0


def test_the_document_goes_before_the_default(management, tmp_path):
    bench = Bench(tmp_path / "state")
    document(bench, management.address)

    assert bench.run(*LIST).status == 0


def test_an_explicit_document_names_the_state_directory_and_the_address(management, tmp_path):
    bench = Bench(tmp_path / "state")
    stated = tmp_path / "capyctl.yaml"
    stated.write_text(
        f"state_dir: {bench.state_root}\n"
        f"server: {{listeners: {{management: {{bind: '{management.address}'}}}}}}\n"
    )

    assert run({}, *LIST, "--config", str(stated))[0] == 0
    assert run({"CAPYCTL_CONFIG": str(stated)}, *LIST)[0] == 0


@pytest.mark.parametrize(
    "environ",
    [
        {"CAPYCTL_STATE_DIR": "{root}/capyctl"},
        {"XDG_STATE_HOME": "{root}"},
        {"HOME": "{home}"},
    ],
)
def test_the_state_root_is_found_without_a_flag(management, tmp_path, environ):
    base = tmp_path / ".local/state"
    Bench(base / "capyctl", management.address)
    places = {"root": str(base), "home": str(tmp_path)}
    said = {name: value.format(**places) for name, value in environ.items()}

    assert run(said, *LIST)[0] == 0


@pytest.mark.parametrize(
    "address", ["10.0.0.1:7443", "example.org:7443", "7443", "127.0.0.1:99999"]
)
def test_the_token_goes_to_loopback_only(tmp_path, address):
    bench = Bench(tmp_path / "state", environ={"CAPYCTL_MANAGEMENT_ADDR": address})

    ran = bench.run(*LIST)

    assert ran.status == 2
    assert ran.errors[0].startswith("error [invalid_config]: CAPYCTL_MANAGEMENT_ADDR: ")


def test_localhost_will_do(management, tmp_path):
    port = management.address.rpartition(":")[2]
    environ = {"CAPYCTL_MANAGEMENT_ADDR": f"localhost:{port}"}

    assert Bench(tmp_path / "state", environ=environ).run(*LIST).status == 0


def test_a_state_root_that_never_served_says_how_to_start(tmp_path):
    status, said = run({"HOME": str(tmp_path)}, *LIST)

    assert status == 13
    assert (
        f"the state directory {tmp_path}/.local/state/capyctl (the default): start one with" in said
    )


def test_a_relative_state_root_is_refused(tmp_path):
    assert run({"HOME": str(tmp_path)}, *LIST, "--state-dir", "here")[0] == 2


def test_credentials_that_are_not_ours_are_said(tmp_path):
    bench = Bench(tmp_path / "state", "127.0.0.1:1")
    (bench.state_root / "identity/credentials").write_text("api_key: a\n")

    ran = bench.run(*LIST)

    assert ran.status == 13
    assert "does not hold the lines" in ran.errors[0]


def document(bench, address):
    folder = bench.state_root / "config"
    folder.mkdir()
    text = f"server: {{listeners: {{management: {{bind: '{address}'}}}}}}\n"
    (folder / "standalone.yaml").write_text(text)


@pytest.mark.parametrize("served", [False, True])
def test_what_is_not_reached_names_its_state_directory_and_where_that_is_from(tmp_path, served):
    root, home = tmp_path / "state", tmp_path / "home"
    document_path = tmp_path / "role.yaml"
    document_path.write_text(f"state_dir: {root}\n")
    default, by_xdg = home / ".local/state/capyctl", tmp_path / "xdg/capyctl"
    if served:
        for one in (root, default, by_xdg):
            Bench(one, "127.0.0.1:9")
    asked = [
        ({}, ("--state-dir", str(root)), root, "--state-dir"),
        ({"CAPYCTL_STATE_DIR": str(root)}, (), root, "CAPYCTL_STATE_DIR"),
        ({}, ("--config", str(document_path)), root, f"state_dir of {document_path}"),
        ({"HOME": str(home)}, (), default, "the default"),
        ({"XDG_STATE_HOME": str(by_xdg.parent)}, (), by_xdg, "the default, by XDG_STATE_HOME"),
    ]

    for environ, words, folder, source in asked:
        status, said = run(environ, *words, *LIST)

        assert status == 13
        assert f"state directory {'is ' if served else ''}{folder} ({source})" in said
