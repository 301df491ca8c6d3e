"""The openai package against a real daemon: answers, streams, and errors it can name."""

import contextlib
import threading

import openai
import pytest

from tests.e2e.daemon import running, simulation, wait_until

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "Hello"}]


@contextlib.contextmanager
def client_of(daemon, key=None):
    with openai.OpenAI(
        base_url=f"{daemon.base_url}/v1",
        api_key=key or daemon.key,
        max_retries=0,
        timeout=30.0,
    ) as client:
        yield client


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    root = tmp_path_factory.mktemp("openai")
    slow = {"tokens_per_s": 20, "reply_tokens": 100}
    simulate = simulation(models={"narrow": slow})
    sets = (
        "host.resource_policy.queue.max_running_per_deployment=1",
        "host.resource_policy.queue.max_pending_per_deployment=0",
    )
    with running(root, simulate=simulate, sets=sets) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def served(daemon):
    """A model that is ready. The limits of this daemon let nobody wait for it."""
    id = daemon.create("served", 1024)
    daemon.do(id, "start")
    daemon.wait_state(id, "ready")
    return "served"


def test_a_chat_and_its_stream(daemon, served):
    with client_of(daemon) as client:
        whole = client.chat.completions.create(model=served, messages=HELLO, temperature=0)
        with client.chat.completions.create(
            model=served,
            messages=HELLO,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert whole.choices[0].message.content == text
    assert whole.model == served
    assert len(text) > 10
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


def test_models_are_listed_whether_they_run_or_not(daemon, served):
    daemon.create("at-rest", 1024)
    with client_of(daemon) as client:
        listed = {model.id: model.object for model in client.models.list()}
    assert listed.items() >= {served: "model", "at-rest": "model"}.items()


def test_completions_and_raw_ids(daemon, served):
    with client_of(daemon) as client:
        answer = client.completions.with_raw_response.create(
            model=served, prompt="Hello", extra_headers={"X-Request-Id": "mine"}
        )
    assert answer.headers["x-request-id"] == "mine"
    assert len(answer.headers["x-capyctl-request-id"]) == 26
    assert answer.parse().choices[0].text


def test_a_wrong_key_is_an_authentication_error(daemon, served):
    with client_of(daemon, key="wrong") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model=served, messages=HELLO)
    assert caught.value.status_code == 401
    assert_readable(caught.value, "unauthorized")


def test_an_unknown_model_is_not_found(daemon):
    with client_of(daemon) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="nobody", messages=HELLO)
    assert_readable(caught.value, "unknown_model")


def test_a_stopped_model_is_a_conflict(daemon):
    id = daemon.create("stopped", 1024)
    daemon.do(id, "stop")
    with client_of(daemon) as client:
        with pytest.raises(openai.ConflictError) as caught:
            client.chat.completions.create(model="stopped", messages=HELLO)
    assert_readable(caught.value, "deployment_stopped")


def test_a_model_without_files_is_a_conflict(daemon):
    body = {"config": {"name": "gone", "model": "gone", "engine": "vllm"}, "activate": False}
    daemon.change("POST", "/deployments", body, key="create-gone")

    def looked_for():
        ones = daemon.snapshot()["deployments"]
        (digest,) = [one["checkpoint_digest"] for one in ones if one["name"] == "gone"]
        return digest.get("diagnostic")

    wait_until(looked_for, what="it is known that there are no files")
    with client_of(daemon) as client:
        with pytest.raises(openai.ConflictError) as caught:
            client.chat.completions.create(model="gone", messages=HELLO)
    assert_readable(caught.value, "conflict")
    assert "No such file or directory" in caught.value.body["message"]


def test_more_than_run_and_wait_is_a_rate_limit(daemon):
    id = daemon.create("narrow", 1024)
    daemon.do(id, "start")
    daemon.wait_state(id, "ready")
    with client_of(daemon) as client:
        with client.chat.completions.create(model="narrow", messages=HELLO, stream=True) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                client.chat.completions.create(model="narrow", messages=HELLO, stream=True)
    assert_readable(caught.value, "queue_full")
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.body["code"] == "queue_full"


def test_a_bad_request_of_the_engine_stays_one(daemon, served):
    with client_of(daemon) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=served, messages=HELLO, max_tokens=10_000_000)
    assert_readable(caught.value, "engine_rejected")


def test_shutting_down_is_said_before_the_end(tmp_path):
    slow = {"tokens_per_s": 20, "reply_tokens": 40}
    with running(tmp_path, simulate=simulation(models={"slow": slow})) as daemon:
        id = daemon.create("slow", 1024)
        daemon.do(id, "start")
        daemon.wait_state(id, "ready")
        with client_of(daemon) as client:
            with client.chat.completions.create(
                model="slow", messages=HELLO, stream=True
            ) as stream:
                chunks = [next(iter(stream))]
                ended = threading.Thread(target=daemon.stop)
                ended.start()
                caught = refused(client)
                chunks += list(stream)
            ended.join(30)
    assert_readable(caught, "unavailable", "shutting_down")
    assert chunks[-1].choices[0].finish_reason == "stop"


def refused(client):
    """The first refusal; until the signal has arrived, requests are served."""
    for _ in range(50):
        try:
            client.chat.completions.create(model="slow", messages=HELLO, max_tokens=1)
        except openai.InternalServerError as error:
            return error
    raise AssertionError("never refused")


def assert_readable(error, *codes):
    assert error.code in codes
    assert error.body["message"]
    assert error.body["type"]
    assert str(error.status_code) in str(error)
