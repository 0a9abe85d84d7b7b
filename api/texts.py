"""Prompts and responses of the newest requests, for `--watch-text`."""

from __future__ import annotations

from collections import OrderedDict

from engine.inference import Inference

KEPT = 2000


class Texts:
    """`keep` and `find` may be called from any thread."""

    def __init__(self) -> None:
        self._newest: OrderedDict[int, Inference] = OrderedDict()

    def keep(self, inference: Inference) -> None:
        self._newest[inference.id] = inference
        if len(self._newest) > KEPT:
            self._newest.popitem(last=False)

    def find(self, number: int) -> Inference | None:
        return self._newest.get(number)
