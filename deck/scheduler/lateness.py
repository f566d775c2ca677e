"""Says what one that has waited too long has waited for; decides nothing."""

from __future__ import annotations

from deck.scheduler.residents import Resident, Room
from deck.scheduler.values import Ticket

_MOST_NAMED = 5
_STATES = {"starting": "is being loaded", "stopping": "is being unloaded"}


def told_late(ticket: Ticket, waited: float, resident: Resident | None, room: Room) -> str:
    """Return what a ticket waited for in vain.

    Args:
        ticket: who waited.
        waited: for how many seconds.
        resident: the server of its model, None = it is not loaded.
        room: what stands between its model and a start; matters only without `resident`.
    """
    name = repr(ticket.profile)
    if resident is not None:
        return f"waited {waited:g} s for {name}: {_of_resident(ticket, resident)}"
    if not room.victims:
        return f"waited {waited:g} s for {name} and it did not become free"
    held = "; ".join(_of_holder(item) for item in room.victims[:_MOST_NAMED])
    return f"waited {waited:g} s for room to load {name}: {held}"


def _of_resident(ticket: Ticket, resident: Resident) -> str:
    if resident.state != "ready" or resident.is_unwanted:
        return "its server is to be started anew and did not become free"
    running, most = resident.running, resident.most
    if most is not None and running >= most:
        return "its only slot is in use" if most == 1 else f"all of its {most} slots are in use"
    return "its turn did not come" if resident.has_room(ticket) else "the tokens that its slots share are in use"


def _of_holder(resident: Resident) -> str:
    name = repr(resident.model.name)
    if resident.state == "ready":
        return f"{name} is in use" if resident.granted else f"{name} stays loaded for now"
    return f"{name} {_STATES[resident.state]}"
