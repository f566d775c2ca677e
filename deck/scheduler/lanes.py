"""How an exchange is scheduled: one pure decision from what it needs.

Knows no request and no server: whoever runs the exchange computes its needs.
"""

from __future__ import annotations

from enum import Enum

from deck.canon.value import value


class Lane(Enum):
    """Where an exchange runs: alone in its conversation, in the server's batch, or shared with its like."""

    SERIAL = "serial"
    CONTINUOUS = "continuous"
    STATIC = "static"


@value(frozen=True, slots=True, kw_only=True)
class RouteNeeds:
    """What an exchange needs of its lane.

    Args:
        prefill_only: the prompt is to be processed and nothing answered.
        continues: it brings the results of calls that Deck remembers, and nothing else.
        tools: the model may call tools.
        may_retry: a call that cannot be used is asked for once more.
        stream: the answer is sent while it is made.
        greedy: the same prompt has the same answer.
        thinking: the client asked for thoughts.
        stops: the client ends the answer at strings of its own.
        logprobs: the client asked for probabilities.
    """

    prefill_only: bool = False
    continues: bool = False
    tools: bool = False
    may_retry: bool = False
    stream: bool = False
    greedy: bool = False
    thinking: bool = False
    stops: bool = False
    logprobs: bool = False


@value(frozen=True, slots=True, kw_only=True)
class Switches:
    """Which lanes a surface may use beside `continuous`, and whether requests with tools may."""

    serial: bool = True
    static: bool = True
    tools: bool = True


def route_decide(needs: RouteNeeds, switches: Switches) -> Lane:
    """Return the lane of an exchange with these needs, on a surface that is switched so."""
    if switches.serial:
        if needs.prefill_only:
            return Lane.SERIAL
        if switches.tools and (needs.continues or (needs.tools and needs.may_retry and not needs.stream)):
            return Lane.SERIAL
    if needs.stream or needs.prefill_only or needs.continues or needs.tools:
        return Lane.CONTINUOUS
    if not needs.greedy or needs.thinking or needs.stops or needs.logprobs:
        return Lane.CONTINUOUS
    return Lane.STATIC if switches.static else Lane.CONTINUOUS
