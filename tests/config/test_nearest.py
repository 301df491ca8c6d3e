"""What a refusal names beside a setting that a document does not have."""

from __future__ import annotations

import pytest

from capyctl.config.check import check
from capyctl.config.deployment import DeploymentDocument
from capyctl.config.host_settings import HOST
from capyctl.config.nearest import nearest
from capyctl.config.problems import InvalidDocument
from capyctl.config.server_settings import SERVER
from capyctl.config.settings import STANDALONE


@pytest.mark.parametrize(
    ("location", "found"),
    [
        (("context_length",), ["engine_config.context_length"]),
        (("kv_cache",), ["engine_config.memory.kv_cache"]),
        (("engine_config", "kv_cache"), ["engine_config.memory.kv_cache"]),
        (("engine_confg",), ["engine_config"]),
        (("lifecycle", "activaton"), ["lifecycle.activation"]),
        (("gguf_file",), ["engine_config.llamacpp.gguf_file"]),
        (("ttl",), []),
        (("lifecycle", "ttl"), []),
        (("engine_config" * 6,), []),
    ],
)
def test_of_a_deployment(location, found):
    assert nearest(DeploymentDocument, location) == found


def test_what_pydantic_alone_names_is_no_place_to_look():
    assert nearest(DeploymentDocument, ("model", "ModelFiles", "source", 3, "x", "zzz")) == []


def test_a_refusal_names_them():
    with pytest.raises(InvalidDocument) as refused:
        check(
            DeploymentDocument,
            {"name": "m", "engine": "vllm", "model": "m", "extra_args": ["--secret-of-mine"]},
            what="deployment",
        )

    assert str(refused.value).endswith(
        "unknown field at `extra_args`: no such setting; nearest: engine_config.extra_args"
    )


def test_every_setting_of_a_role_is_found_by_a_misspelt_name():
    for role in (STANDALONE, SERVER, HOST):
        for name in role.model.model_fields:
            assert name in nearest(role.model, (f"{name}x",))
