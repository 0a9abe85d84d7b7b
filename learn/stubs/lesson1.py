"""Lesson 1: one request at a time. The page is learn/1-one-at-a-time.md."""

from seams import Advance, Plan


class OneAtATime:
    answers = "own"  # leave this line, the engine reads it: an answer leaves with its last token

    def plan(self, view):
        # Yours: the only resident advances, by all its tokens that are known and not yet computed.
        # If nobody is resident, the first that waits does.
        raise NotImplementedError("`plan` returns Plan([Advance(request, number of tokens)])")

    def retire(self, resident):
        # Yours: those of these requests that are done
        raise NotImplementedError("`retire` returns a list of requests")
