"""Answers whether instances would find room, together, as things are now."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from capyctl.control.outlook import Outlook
from capyctl.domain.ids import InstanceId, SwitchId
from capyctl.ledger.ledger import Foreign, free, hold
from capyctl.ledger.places import entry_for
from capyctl.ledger.plan import FitsAfter, NoRoom, plan
from capyctl.messages.deployment import FitAnswered
from capyctl.messages.placement import AskFit

WHOLE_HOST = "startup_requires_empty_host"


def answer_fit(
    asked: AskFit, outlook: Outlook, foreign: Foreign, switch: Callable[[], SwitchId]
) -> FitAnswered:
    """Books on a copy: nothing is held for it. ``switch``: a fresh name, where others must move."""
    trial = outlook.trial()
    occupants = outlook.occupants(c.host for q in asked.questions for c in q.candidates)
    hosts = attrs.evolve(outlook.hosts(None), promised={}, switching=())
    fitting: list[int] = []
    victims: list[InstanceId] = []
    missing: list[tuple[int, NoRoom]] = []
    evicting_helps: list[bool] = []
    for question in asked.questions:
        instance = InstanceId(asked.deployment, question.index)
        wanted = outlook.wanted(instance, question.phase, question.candidates)
        found = plan(trial, wanted, occupants, may_evict=asked.evict, foreign=foreign, hosts=hosts)
        if isinstance(found, NoRoom):
            missing.append((question.index, found))
            if not asked.evict:
                moved = plan(trial, wanted, occupants, may_evict=True, foreign=foreign, hosts=hosts)
                evicting_helps.append(isinstance(moved, FitsAfter))
            continue
        if isinstance(found, FitsAfter):
            for victim in found.victims:
                trial = free(trial, victim.instance)
                occupants.pop(victim.instance, None)
                victims.append(victim.instance)
        fitting.append(question.index)
        trial = hold(trial, entry_for(wanted, found.candidate))
    return FitAnswered(
        request=asked.request,
        fitting=tuple(fitting),
        shortage=_shortage(asked, missing, outlook, evicting_helps),
        code=_code([found for _, found in missing]),
        victims=tuple(victims),
        switch=switch() if victims else None,
    )


def _shortage(
    asked: AskFit,
    missing: list[tuple[int, NoRoom]],
    outlook: Outlook,
    evicting_helps: list[bool],
) -> str | None:
    """``evicting_helps``: of each that is missing, where the question was not that already."""
    if not missing:
        return None
    index, found = missing[0]
    why = outlook.why(found, InstanceId(asked.deployment, index))
    helps = bool(evicting_helps) and evicting_helps[0]
    evict = "; `--evict` would move idle models out of the way" if helps else ""
    return f"Instance {index}: {why}{evict}"


def _code(missing: list[NoRoom]) -> str:
    if missing and all(found.empty_host for found in missing):
        return WHOLE_HOST
    if missing and all(found.ineligible for found in missing):
        return "host_ineligible"
    return "capacity_blocked"
