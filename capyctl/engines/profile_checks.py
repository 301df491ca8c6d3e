"""Contents of a profile that no launch would take: arguments, variables, approvals."""

from __future__ import annotations

from capyctl.contracts.engine_documents import Invalid
from capyctl.domain.profiles import NEVER_PARK, StoredProfile
from capyctl.engines.arguments import TABLES, check_profile_args
from capyctl.engines.env_rules import check_approval, check_env


def check_profile(path: str, stored: StoredProfile) -> None:
    """Refuse what the engine's own rules forbid. The shapes of the fields are the document's.

    Raises:
        Invalid: names the field below ``path``.
    """
    try:
        check_env(stored.engine, stored.env)
        if stored.engine in TABLES:
            check_profile_args(stored.engine, stored.args)
        for pattern in stored.approved_env:
            check_approval(pattern)
    except ValueError as problem:
        # Their messages begin with the field, so that they read well in both places.
        raise Invalid(path, str(problem)) from problem
    if stored.deep_park and stored.deep_park_stated and stored.engine in NEVER_PARK:
        raise Invalid(f"{path}.security.deep_park", f"{stored.engine} never parks")
