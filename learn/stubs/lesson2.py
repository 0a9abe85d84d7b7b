"""Lesson 2: static batching. The page is learn/2-static-batching.md."""

from seams import Advance, Plan


class WholeBatch:
    answers = "batch"  # leave this line, the engine reads it: all answers leave when the batch ends

    def plan(self, view):
        # Yours: if there are residents, those that are not done advance, and those that are done
        # are held. If not, a batch begins: the first `view.max_batch_size` that wait.
        raise NotImplementedError("`plan` returns Plan([...], hold=[...])")

    def retire(self, resident):
        # Yours: all of them if all are done, otherwise nobody
        raise NotImplementedError("`retire` returns a list of requests")


def lay_out(steps):
    # Yours: the same steps, each as wide as the widest: step._replace(padding=...)
    raise NotImplementedError("`lay_out` returns a list of steps")
