"""What reaches the engine, and what comes back, byte for byte."""



from tests.dataplane.engines import (
    ENGINE_KEY,
    answers,
    json_answer,
    post,
    world,
)

BODY = b'{"model":"m","messages":[], "x_custom": {"a":1.0}}'
ANSWER = b'{"id":"1","choices":[{"message":{"content":"hi"}}],"timings":{"x":1}}'


async def test_engine_gets_the_body_as_it_came_and_nothing_of_the_client():
    async with world(answers(json_answer(ANSWER))) as plane:
        request = post(
            BODY,
            "/v1/chat/completions?a=b%20c",
            headers=(
                "Accept: text/x",
                "X-Request-Id: mine",
                "X-Conversation-Id: c",
                "Cookie: c",
                "Accept-Encoding: br",
            ),
        )
        got = await plane.ask(request)

    seen = plane.engines[0].requests[0]
    assert got.body == ANSWER
    assert seen.body == BODY
    assert seen.line == "POST /v1/chat/completions?a=b%20c HTTP/1.1"
    assert seen.headers == {
        "host": f"127.0.0.1:{plane.engines[0].port}",
        "accept": "text/x",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "content-length": str(len(BODY)),
        "authorization": f"Bearer {ENGINE_KEY}",
    }
