"""A course in serving language models that marks itself: five lessons, `python -m learn`."""


class LessonError(Exception):
    """What is not right yet, in a sentence for the reader."""


def require(kept: bool, sentence: str) -> None:
    """Raises LessonError."""
    if not kept:
        raise LessonError(sentence)
