"""What the policy is told and what it answers: values only."""

from __future__ import annotations

from deck.canon.value import value
from deck.errors import DeckError
from deck.scheduler.slots import Claim


@value(frozen=True, slots=True, kw_only=True)
class Model:
    """What the policy must know of a model; sizes in bytes, times in seconds.

    Args:
        name: the profile's id.
        is_local: false = it runs elsewhere and takes no room here.
        memory: what its server takes; None = nobody knows, so it gets the room to itself.
        group: of the models of one group at most one is resident.
        is_pinned: once resident it is never stopped to make room.
        priority: added to that of each of its exchanges.
        concurrency: most exchanges at a time, below what its slots allow; None = as many as its slots.
        min_resident: how long it stays at least, so that two busy models do not only load.
        is_warm: it is started whenever there is room, though nobody asks for it.
        restarts: after a crash it is started again, though nobody asks for it.
    """

    name: str
    is_local: bool = True
    memory: int | None = None
    group: str | None = None
    is_pinned: bool = False
    priority: int = 0
    concurrency: int | None = None
    min_resident: float = 0.0
    is_warm: bool = False
    restarts: bool = False


@value(frozen=True, slots=True)
class Ticket:
    """One exchange that wants a model.

    Args:
        id: no other ticket has it.
        model: what it wants.
        since: when it came, in the caller's clock.
        token: who sent it.
        priority: a higher one is served first; waiting raises it.
        credit: most tokens it may come to occupy in a pool that the server's slots share.
        claim: of the conversation that it belongs to, where Deck gives out the server's slots or their order matters.
    """

    id: int
    model: Model
    since: float
    token: str = ""
    priority: int = 0
    credit: int = 0
    claim: Claim | None = None

    @property
    def profile(self) -> str:
        """The name of the model."""
        return self.model.name


@value(frozen=True, slots=True)
class Waiting:
    """Where a ticket stands: its place in the queue from 1, and how many seconds it will wait if all goes on so."""

    ticket: Ticket
    place: int
    expected: float | None


@value(frozen=True, slots=True)
class Grant:
    """The ticket may use its server now."""

    ticket: Ticket


@value(frozen=True, slots=True)
class Refuse:
    """The ticket gets this error."""

    ticket: Ticket
    error: DeckError


@value(frozen=True, slots=True)
class Start:
    """Start this profile's server; the answer is `started` or `failed`."""

    profile: str


@value(frozen=True, slots=True)
class Stop:
    """Stop this profile's server; the answer is `stopped`."""

    profile: str


Command = Grant | Refuse | Start | Stop
