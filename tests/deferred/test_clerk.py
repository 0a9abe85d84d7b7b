"""The clerk's turns, on a real store."""

from __future__ import annotations

import pytest

from deferred import lines
from deferred.clerk import Clerk
from deferred.records import Unrun
from deferred.store import JobStore
from tests.deferred.jobs import MODEL, OWNER, started


def test_a_batch_that_cannot_be_finalised_holds_up_no_other_and_is_tried_again(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, *others = (started(store, 2) for _ in range(3))
    clerk = Clerk(
        store,
        name="clerk",
        model=MODEL,
        most_line_bytes=1000,
        hurried=lambda: False,
        started=lambda: None,
    )
    unrun, tries = lines.unrun, 0

    def fails(batch_id: str, line: int, custom_id: str, why: Unrun) -> bytes:
        nonlocal tries
        if batch_id == broken.id:
            tries += 1
            raise ValueError("a fault of ours")
        return unrun(batch_id, line, custom_id, why)

    def statuses() -> list[str]:
        return [store.batches.get(OWNER, batch.id).status for batch in (broken, *others)]

    monkeypatch.setattr(lines, "unrun", fails)
    for _ in range(4):  # the windows of all three are over
        clerk._turn()
    assert statuses() == ["finalizing", "expired", "expired"]
    assert tries == 1

    monkeypatch.setattr(lines, "unrun", unrun)
    monkeypatch.setattr("deferred.clerk.ASIDE_S", 0.0)
    clerk._turn()
    assert statuses() == ["expired"] * 3
