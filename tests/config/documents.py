"""Profiles, checks and a host to complete deployment documents with."""

from __future__ import annotations

from capyctl.config.complete import Checks, HostDefaults, complete_deployment
from capyctl.domain.devices import Profile

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MINIMAL = {"name": "my-model", "engine": "vllm", "model": "Qwen3-4B"}


def profile(name, family=None, **changes):
    return Profile(
        name=name,
        family=family or name,
        revision=3,
        executable=(f"/opt/{name}",),
        **{"version": "1", **changes},
    )


PROFILES = (
    profile("vllm", trust_remote_code=True),
    profile("quiet", "sglang", deep_park=False),
    profile("llamacpp"),
    profile("tensorfold"),
    profile("old-llama", "llamacpp"),
)


def check_extra_args(family, profile, extra_args, *, accepted=True, declared=frozenset()):
    if extra_args and not accepted:
        raise ValueError("engine_config.extra_args: needs accept_extra_args: true")
    if "--port" in extra_args:
        raise ValueError("engine_config.extra_args: --port is set by capyctl itself")
    if "--dtype" in extra_args and "dtype" in declared:
        raise ValueError("engine_config.extra_args: --dtype has a field")


def resolve_env(family, profile, document):
    for name in document:
        if name == "HOME":
            raise ValueError("engine_env_reserved:HOME: capyctl sets it itself")
    return dict(document)


CHECKS = Checks(extra_args=check_extra_args, env=resolve_env)
DEFAULTS = HostDefaults(host="box", labels={"zone": "a"})


def complete(document, *, profiles=PROFILES, defaults=DEFAULTS):
    return complete_deployment(
        document, profiles=profiles, models_root="/models", defaults=defaults, checks=CHECKS
    )
