"""Which published profile runs a deployment."""

from __future__ import annotations

from capyctl.config.deployment import DeploymentDocument
from capyctl.config.engine_config import FAMILIES
from capyctl.config.problems import ProblemClass, invalid
from capyctl.domain.devices import Profile
from capyctl.domain.errors import Refused


def find_profile(
    parsed: DeploymentDocument, profiles: tuple[Profile, ...], *, host: str
) -> Profile:
    """The profile of that name, else the host's one profile of that family.

    Raises:
        Refused: ``invalid_config`` when none is named or two names disagree,
            ``profile_not_published`` when the host has none, or several of the family.
    """
    wanted = parsed.runtime_profile or parsed.engine
    if wanted is None:
        raise invalid(ProblemClass.MISSING, "engine", "state engine or runtime_profile")
    found = [profile for profile in profiles if profile.name == wanted]
    if not found and parsed.runtime_profile is None and wanted in FAMILIES:
        found = [profile for profile in profiles if profile.family == wanted]
    if len(found) != 1:
        raise _not_published(wanted, found, profiles, host=host)
    (profile,) = found
    _check_agreement(parsed, profile)
    revision = parsed.runtime_profile_revision
    if revision is not None and revision != profile.revision:
        message = (
            f"Host {host} publishes revision {profile.revision} of profile {profile.name}, not "
            f"{revision}: drop runtime_profile_revision or register that revision again"
        )
        raise Refused("profile_not_published", message, _details(wanted, profiles, host))
    return profile


def _check_agreement(parsed: DeploymentDocument, profile: Profile) -> None:
    if parsed.engine is None or parsed.engine in (profile.name, profile.family):
        return
    detail = "runtime_profile names another engine; state one of them"
    raise invalid(ProblemClass.CONFLICT, "engine", detail)


def _not_published(
    wanted: str, found: list[Profile], profiles: tuple[Profile, ...], *, host: str
) -> Refused:
    names = ", ".join(profile.name for profile in profiles) or "none"
    if len(found) > 1:
        several = ", ".join(profile.name for profile in found)
        message = (
            f"Host {host} publishes several profiles of that engine ({several}): name one of "
            "them as runtime_profile"
        )
    else:
        message = (
            f"No allowed host publishes profile {wanted}; {host} publishes: {names}. Register "
            "the engine there with `capyctl engine add`, or name a published profile"
        )
    return Refused("profile_not_published", message, _details(wanted, profiles, host))


def _details(wanted: str, profiles: tuple[Profile, ...], host: str) -> dict[str, object]:
    return {"profile": wanted, "hosts": {host: [profile.name for profile in profiles]}}
