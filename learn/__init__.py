"""A course in serving language models that marks itself: five lessons, `python -m learn`."""


class NotYetError(Exception):
    """What is not right yet, in a sentence for the reader."""


def require(kept: bool, sentence: str) -> None:
    """Raises NotYetError."""
    if not kept:
        raise NotYetError(sentence)
