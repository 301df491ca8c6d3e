"""Contents of a profile that no launch would take: arguments, variables, approvals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from capyctl.contracts.engine_documents import Invalid
from capyctl.domain.devices import Profile
from capyctl.domain.profiles import NEVER_PARK, StoredProfile
from capyctl.engines.arguments import TABLES, check_profile_args
from capyctl.engines.env_rules import check_approval, check_env


def check_profile(path: str, stored: StoredProfile) -> None:
    """Refuse what the engine's own rules forbid. The shapes of the fields are the document's.

    Raises:
        Invalid: names the field below ``path``.
    """
    try:
        _check(stored.engine, stored.env, stored.args, stored.approved_env)
    except ValueError as problem:
        # Their messages begin with the field, so that they read well in both places.
        raise Invalid(path, str(problem)) from problem
    if stored.deep_park and stored.deep_park_stated and stored.engine in NEVER_PARK:
        raise Invalid(f"{path}.security.deep_park", f"{stored.engine} never parks")


def why_not_taken(profile: Profile) -> str | None:
    """What the engine's rules forbid of a profile that was written by hand; None: nothing."""
    try:
        _check(profile.family, profile.env, profile.args, profile.approved_env)
    except ValueError as problem:
        return str(problem)
    return None


def _check(
    family: str, env: Mapping[str, str], args: Sequence[str], approved: Iterable[str]
) -> None:
    """Raises ValueError, which begins with the field."""
    check_env(family, env)
    if family in TABLES:
        check_profile_args(family, args)
    for pattern in approved:
        check_approval(pattern)
