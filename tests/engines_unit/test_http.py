import pytest
import trio

from capyctl.engines.http import Unreachable, request, request_json
from tests.engines_unit.fake_server import Told


async def test_an_answer_of_any_status_is_a_reply(serve):
    server = await serve(lambda asked: Told(status=404, body={"error": "no"}))
    reply = await request("GET", "127.0.0.1", server.port, "/x?y=1", within_s=5)
    assert (reply.status, reply.json()) == (404, {"error": "no"})
    assert server.calls() == ["GET /x?y=1"]
    assert server.asked[0].headers["connection"] == "close"


async def test_json_goes_out_with_its_type_and_the_given_headers(serve):
    server = await serve(lambda asked: Told(body=b"plain"))
    headers = {"authorization": "Bearer k"}
    reply = await request_json(
        "POST", "127.0.0.1", server.port, "/x", {"a": 1}, headers=headers, within_s=5
    )
    asked = server.asked[0]
    assert asked.json() == {"a": 1}
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["authorization"] == "Bearer k"
    assert reply.json_object() is None


async def test_a_refused_connection_is_known_to_have_sent_nothing():
    with trio.socket.socket() as free:
        await free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Unreachable) as caught:
        await request("GET", "127.0.0.1", port, "/", within_s=5)
    assert (caught.value.why, caught.value.sent) == ("refused", False)


async def test_a_closed_connection_is_broken_and_may_have_been_heard(serve):
    server = await serve(lambda asked: Told(hang_up=True))
    with pytest.raises(Unreachable) as caught:
        await request("POST", "127.0.0.1", server.port, "/sleep", within_s=5)
    assert (caught.value.why, caught.value.sent) == ("broken", True)


@pytest.mark.slow
async def test_silence_ends_at_the_bound(serve):
    server = await serve(lambda asked: Told(silent=True))
    with pytest.raises(Unreachable, match=r"within 0\.3 s") as caught:
        await request("GET", "127.0.0.1", server.port, "/", within_s=0.3)
    assert (caught.value.why, caught.value.sent) == ("timeout", True)


async def test_a_long_answer_is_cut_off(serve):
    server = await serve(lambda asked: Told(body=b"x" * 5000))
    with pytest.raises(Unreachable, match="over 4096 bytes"):
        await request("GET", "127.0.0.1", server.port, "/", within_s=5, bytes_max=4096)


async def test_something_else_than_http_is_broken(nursery):
    async def gibberish(stream):
        async with stream:
            await stream.receive_some(65536)
            await stream.send_all(b"\x00\x01 this is not HTTP\r\n\r\n")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, gibberish, listeners)
    with pytest.raises(Unreachable) as caught:
        await request("GET", "127.0.0.1", listeners[0].socket.getsockname()[1], "/", within_s=5)
    assert caught.value.why == "broken"
    nursery.cancel_scope.cancel()


async def test_only_loopback_is_ever_called():
    with pytest.raises(ValueError, match="loopback"):
        await request("GET", "192.0.2.1", 80, "/", within_s=1)
