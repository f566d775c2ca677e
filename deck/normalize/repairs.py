"""What a note's field is where Deck did something about what a model wrote: counted and logged apart from the rest."""

# A call or a thought found in the text, a call that a token limit cut, and a call that was asked for once more.
RESCUED_CALL, LEAKED_THINKING, CUT_CALL, RETRIED_CALL = "rescued_call", "leaked_thinking", "cut_call", "retried_call"
REPAIRS = (RESCUED_CALL, LEAKED_THINKING, CUT_CALL, RETRIED_CALL)
