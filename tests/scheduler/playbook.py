"""Playbooks: what happens and what the policy must command, one line each, as text.

    # name of the play
    policy memory=8 queue=2 wait=10 tokens=1 ageing=30
    a memory=4 group=g pinned priority=1 concurrency=1 stay=20        what a model is; `remote`, `warm`, `restarts` too
    @5 a1 arrives token=x priority=2 credit=100 -> start a            a ticket is its model's letter and a number
    a ready 2 pool=1000 -> grant a1, grant a2                         slots, 0 = no bound
    a1 takes 50                                                       what it was found to take, once it runs
    a1 arrives conversation=c holds alone=60 -> grant a1              what it says of its conversation
    a ready 2 book -> grant a1 in 0                                   Deck gives them out; grace 60 s, longest 1800 s
    a slots 1                                                         some of its servers went or came back
    a1 ends | a1 leaves | a stopped | a crashes | a idle -> stop a, refuse b1 unavailable
    a fails | a fails memory | a fails unrun | a fails lasting        why it did not start
    a hangs | a recycle                                               what was seen of a ready one
    a unload | a preload | a forgive | tick                           an operator's words, and time alone
    a renewed pinned memory=4 | a relaunched memory=4                 what a model is from now on

`@5` sets the clock, which otherwise stands still; nothing after `->`, or no `->`, means no command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deck.errors import DeckError, ErrorKind
from deck.scheduler.policy import Policy
from deck.scheduler.slots import Claim, SlotBook
from deck.scheduler.values import Command, Grant, Model, Refuse, Start, Ticket

_EVENTS = ("ready", "slots", "fails", "stopped", "crashes", "hangs", "recycle", "idle", "unload", "preload", "forgive")
_CHANGES = ("renewed", "relaunched")
FILE = Path(__file__).parent / "playbooks.txt"


@dataclass
class Playbook:
    """One play."""

    name: str
    lines: list[str] = field(default_factory=list)


def playbooks() -> Iterator[Playbook]:
    """Read all plays."""
    current: Playbook | None = None
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            if current is not None:
                yield current
            current = Playbook(line[2:].strip())
        elif line.strip() and current is not None:
            current.lines.append(line)
    if current is not None:
        yield current


class Play:
    """A play as it goes on."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {"queue_limit": 50, "queue_wait": 1e9}
        self.models: dict[str, Model] = {}
        self.tickets: dict[str, Ticket] = {}
        self.now = 0.0
        self.policy: Policy | None = None

    def run(self, playbook: Playbook) -> None:
        for line in playbook.lines:
            said, _, expected = line.partition("->")
            words = said.split()
            if words[0] == "policy":
                self.set_policy(words[1:])
            elif len(words[0]) == 1 and (len(words) == 1 or not self.is_event(words)):
                self.models[words[0]] = model(words)
            else:
                found = self.event(words)
                wanted = [part.strip() for part in expected.split(",") if part.strip()]
                assert found == wanted, f"{playbook.name}: {line.strip()}\n  came: {', '.join(found) or 'nothing'}"

    @staticmethod
    def is_event(words: list[str]) -> bool:
        return words[1] in (*_EVENTS, *_CHANGES)

    def set_policy(self, words: list[str]) -> None:
        names = {"queue": "queue_limit", "wait": "queue_wait", "tokens": "token_limit"}
        for key, value in (word.split("=") for word in words):
            self.options[names.get(key, key)] = float(value) if key in ("wait", "ageing") else int(value)

    def event(self, words: list[str]) -> list[str]:
        if self.policy is None:
            self.policy = Policy(**self.options)
        if words[0].startswith("@"):
            self.now = float(words[0][1:])
            words = words[1:]
        return [self.shown(command) for command in self.commands(self.policy, words)]

    def commands(self, policy: Policy, words: list[str]) -> list[Command]:
        match words:
            case ["tick"]:
                return policy.expire(self.now)
            case [who, ("arrives" | "ends" | "takes" | "leaves") as what, *rest]:
                return self.of_ticket(policy, who, what, rest)
            case [name, what, *rest]:
                return self.of_model(policy, name, what, rest)
        raise AssertionError(f"no such event: {' '.join(words)}")

    def of_ticket(self, policy: Policy, who: str, what: str, rest: list[str]) -> list[Command]:
        match what, rest:
            case "arrives", _:
                members = dict(word.split("=") for word in rest if "=" in word)
                self.tickets[who] = Ticket(
                    len(self.tickets),
                    self.models.get(who[0], Model(name=who[0])),
                    self.now,
                    members.get("token", ""),
                    int(members.get("priority", 0)),
                    int(members.get("credit", 0)),
                    claim(rest, members),
                )
                return policy.arrive(self.tickets[who], self.now)
            case "ends", []:
                return policy.release(self.tickets[who], self.now)
            case "takes", [credit]:
                return policy.settle(self.tickets[who], int(credit), self.now)
            case "leaves", []:
                return policy.leave(self.tickets[who], self.now)
        raise AssertionError(f"no such event: {who} {what} {' '.join(rest)}")

    def of_model(self, policy: Policy, name: str, what: str, rest: list[str]) -> list[Command]:
        match what, rest:
            case "ready", [slots, *more]:
                members = dict(word.split("=") for word in more if "=" in word)
                pool, patience = members.get("pool"), float(members.get("patience", "inf"))
                kept = SlotBook(int(slots), grace=60.0, longest=1800.0, patience=patience)
                book = kept if "book" in more else None
                return policy.started(name, int(slots), self.now, pool=int(pool) if pool else None, book=book)
            case "fails", _:
                is_lasting = rest in (["unrun"], ["lasting"])
                error = DeckError(ErrorKind.UNAVAILABLE, "it ended", should_retry=False if is_lasting else None)
                return policy.failed(name, error, self.now, for_memory=rest == ["memory"], was_run=rest != ["unrun"])
            case "slots", [slots]:
                return policy.resized(name, int(slots), self.now)
            case "crashes", []:
                return policy.crashed(name, DeckError(ErrorKind.UPSTREAM, "it crashed"), self.now)
            case "forgive", []:
                policy.forgive(name)
                return []
            case (("renewed" | "relaunched"), _):
                self.models[name] = model([name, *rest])
                return policy.renew(self.models[name], self.now, is_relaunched=what == "relaunched")
            case "preload", []:
                return policy.preload(self.models.get(name, Model(name=name)), self.now)
            case (("stopped" | "idle" | "unload" | "hangs" | "recycle"), []):
                found: list[Command] | None = getattr(policy, {"hangs": "hung"}.get(what, what))(name, self.now)
                return found or []
        raise AssertionError(f"no such event: {name} {what} {' '.join(rest)}")

    def shown(self, command: Command) -> str:
        if isinstance(command, Grant | Refuse):
            who = next(name for name, ticket in self.tickets.items() if ticket.id == command.ticket.id)
            if isinstance(command, Refuse):
                return f"refuse {who} {command.error.kind.label}"
            slot = self.policy.slot(command.ticket) if self.policy is not None else None
            return f"grant {who}" if slot is None else f"grant {who} in {slot}"
        return f"{'start' if isinstance(command, Start) else 'stop'} {command.profile}"


def claim(words: list[str], members: dict[str, str]) -> Claim | None:
    """Read what a ticket says of its conversation."""
    name = members.get("conversation")
    return Claim(name.encode(), b"", "holds" in words, float(members.get("alone", 0))) if name is not None else None


def model(words: list[str]) -> Model:
    """Read what a model is."""
    members: dict[str, Any] = {}
    for word in words[1:]:
        key, _, value = word.partition("=")
        match key:
            case "remote":
                members["is_local"] = False
            case "pinned":
                members["is_pinned"] = True
            case "warm":
                members["is_warm"] = True
            case "restarts":
                members["restarts"] = True
            case "group":
                members["group"] = value
            case "stay":
                members["min_resident"] = float(value)
            case "memory" | "priority" | "concurrency" if re.fullmatch(r"-?\d+", value):
                members[key] = int(value)
            case _:
                raise AssertionError(f"no such property: {word}")
    return Model(name=words[0], **members)
