import io
import json
import wave

import pytest

from capyctl.domain.specs import ModelTask
from capyctl.engines.http import Reply
from capyctl.engines.questions import (
    CHAT_PATH,
    EMBEDDINGS_PATH,
    KEPT_NUMBERS_MAX,
    PATH_OF_TASK,
    RERANK_PATH,
    TRANSCRIPTIONS_PATH,
    Answer,
    answer_of,
    ask,
    canary_path,
    same_canary,
    sound,
    write_canary,
)


def told(body):
    return Reply(status=200, headers={}, body=json.dumps(body).encode())


def vector(*numbers):
    return told({"data": [{"embedding": list(numbers)}]})


def test_every_task_has_its_question():
    for task in ModelTask:
        question = ask(PATH_OF_TASK[task], "m", "words", 4)
        assert question.path == PATH_OF_TASK[task]
        assert b"m" in question.body


def test_the_recording_is_a_second_of_sound():
    with wave.open(io.BytesIO(sound())) as heard:
        assert (heard.getframerate(), heard.getnchannels(), heard.getsampwidth()) == (16000, 1, 2)
        assert heard.getnframes() == 16000
        assert any(heard.readframes(16000))


def test_a_form_names_its_fields_and_its_file():
    question = ask(TRANSCRIPTIONS_PATH, "m/n", "", 1)
    boundary = question.content_type.partition("boundary=")[2].encode()
    parts = question.body.split(b"--" + boundary)
    assert b'name="model"\r\n\r\nm/n\r\n' in parts[1]
    assert b'filename="probe.wav"' in parts[-2]
    assert parts[-1] == b"--\r\n"


def test_the_beginning_of_an_embedding_is_kept():
    answer = answer_of(EMBEDDINGS_PATH, vector(*([0.5] * 4096)))
    assert answer.numbers == (0.5,) * KEPT_NUMBERS_MAX


@pytest.mark.parametrize(
    "body",
    [
        {"data": [{"embedding": [0.0, 0.0]}]},
        {"data": [{"embedding": [float("nan"), 1.0]}]},
        {"data": [{"embedding": [True, 1.0]}]},
        {"data": [{"embedding": "text"}]},
        {"data": []},
        {"data": [7]},
        [1],
    ],
)
def test_what_is_no_embedding_answers_nothing(body):
    assert not answer_of(EMBEDDINGS_PATH, told(body)).answers


def test_scores_come_in_the_order_of_the_documents():
    rows = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": -3}]
    bare = [{"index": 1, "score": 0.9}, {"index": 0, "score": -3}]
    assert answer_of(RERANK_PATH, told({"results": rows})).numbers == (-3.0, 0.9)
    assert answer_of(RERANK_PATH, told(bare)).numbers == (-3.0, 0.9)


@pytest.mark.parametrize(
    "body", [{"results": [{"relevance_score": 1}]}, {"results": [3]}, {}, [{"index": 0}]]
)
def test_what_is_no_reranking_answers_nothing(body):
    assert not answer_of(RERANK_PATH, told(body)).answers


def test_silence_that_was_heard_is_an_answer():
    assert answer_of(TRANSCRIPTIONS_PATH, told({"text": ""})).answers
    assert not answer_of(TRANSCRIPTIONS_PATH, told({"error": "x"})).answers


def test_a_body_that_is_no_json_answers_nothing():
    assert not answer_of(CHAT_PATH, Reply(status=200, headers={}, body=b"<html>")).answers


@pytest.mark.parametrize("path", list(PATH_OF_TASK.values()))
def test_a_canary_remembers_its_path(path):
    assert canary_path(write_canary(path, Answer(text="x"))) == path


@pytest.mark.parametrize("kept", [None, "", "{", "[]", '{"path":"/shutdown"}'])
def test_an_old_or_strange_canary_is_asked_as_a_chat(kept):
    assert canary_path(kept) == CHAT_PATH


def embedded(*numbers):
    return write_canary(EMBEDDINGS_PATH, Answer(numbers=numbers))


def ranked(*numbers):
    return write_canary(RERANK_PATH, Answer(numbers=numbers))


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (embedded(0.6, 0.8), embedded(0.6001, 0.7999), True),
        (embedded(0.6, 0.8), embedded(0.8, 0.6), False),
        (embedded(0.6, 0.8), embedded(-0.6, -0.8), False),
        (embedded(0.6, 0.8), embedded(0.6), False),
        (embedded(0.6, 0.8), embedded(), False),
        (ranked(0.5, -4.0), ranked(0.51, -4.05), True),
        (ranked(0.5, -4.0), ranked(0.6, -4.0), False),
        (ranked(0.5, 0.1), ranked(), False),
        (ranked(0.5, 0.1), ranked(0.5), False),
    ],
)
def test_numbers_are_compared_with_some_play(before, after, same):
    assert same_canary(before, after) is same
