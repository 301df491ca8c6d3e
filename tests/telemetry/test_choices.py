"""Parsers and context in the snapshot."""

import attrs
import pytest

from capyctl.domain.specs import (
    ChosenParser,
    EngineSettings,
    Residency,
    ResolvedSpec,
    Windows,
)
from capyctl.telemetry.choices import choices_of

RESOLVED = ResolvedSpec(
    residency=Residency.DEEP,
    engine=EngineSettings(
        profile="vllm",
        profile_revision=1,
        family="vllm",
        executable=("/v",),
        model_path="/m",
        served_name="m",
        context_length=8192,
    ),
    candidates=(),
    windows=Windows(request_deadline_s=1, initialize_s=1, wake_s=1, stop_s=1),
    weights_bytes=1,
    provisional=False,
    parsers=(
        ChosenParser(field="tool_call_parser", name="hermes", source="model_family"),
        ChosenParser(field="reasoning_parser", name=None, source="unsupported"),
    ),
    notes=("one", "two"),
    running_limit=3,
)


def test_everything_there_is():
    assert choices_of(RESOLVED) == {
        "context": {"length": 8192, "warning": "one; two", "running_limit": 3},
        "parsers": {
            "tool_call_parser": {"name": "hermes", "source": "model_family"},
            "reasoning_parser": {"name": None, "source": "unsupported"},
        },
    }


def test_what_there_is_nothing_of_is_left_out():
    bare = attrs.evolve(RESOLVED, parsers=(), notes=(), running_limit=None)
    bare = attrs.evolve(bare, engine=attrs.evolve(bare.engine, context_length=None))

    assert choices_of(bare) == {"context": {"length": None}}


@pytest.mark.parametrize("resolved", [None, attrs.evolve(RESOLVED, provisional=True)])
def test_before_the_files_are_measured_nothing_is_said(resolved):
    assert choices_of(resolved) == {}
