"""The ledger of KV blocks: its books close, and only equal prefixes are shared."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks import Ledger
from engine.inference import Inference
from seams import Advance, Sampling

BLOCK, BUDGET = 4, 24


class LedgerMachine(RuleBasedStateMachine):
    """Requests of two tokens and two owners, so that many begin alike. `held` is what a model that
    obeys the ledger would find in each position of each block, and whose it is."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(BUDGET, BLOCK, growth_tokens=3, prefix_caching=True)
        self.residents: list[Inference] = []
        self.tables: dict[int, list[int]] = {}
        self.held: dict[tuple[int, int], tuple[str, *tuple[int, ...]]] = {}
        self.count = 0

    def grow(self, steps: list[Advance]) -> None:
        for id, blocks in self.ledger.grow(steps).items():
            self.tables.setdefault(id, []).extend(blocks)

    @rule(
        prompts=st.lists(
            st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=3
        ),
        further=st.integers(1, 12),
        salt=st.sampled_from(["", "another"]),
        releasing=st.integers(0, 2),
    )
    def admit(self, prompts: list[list[int]], further: int, salt: str, releasing: int) -> None:
        new = []
        for prompt in prompts:
            self.count += 1
            new.append(Inference(prompt, further, Sampling(), 0.0, salt=salt))
            new[-1].id = self.count
        leaving = self.residents[:releasing]
        fit = self.ledger.fit(new, leaving)
        for sequence in leaving:
            self.release(sequence)
        assert self.ledger.fit(new) == fit
        shown = [self.ledger.hit_tokens(s) for s in new[:fit]]
        hits = self.ledger.open(new[:fit])
        assert shown == hits
        self.grow([])
        for sequence, hit_tokens in zip(new[:fit], hits, strict=True):
            sequence.resident = True
            sequence.computed = hit_tokens
            assert sequence.computed < sequence.known
            self.residents.append(sequence)
            self.reads_its_own_prefix(sequence)

    @precondition(lambda self: self.residents)
    @rule(data=st.data(), token=st.integers(0, 1))
    def advance(self, data: st.DataObject, token: int) -> None:
        sequence = data.draw(st.sampled_from(self.residents))
        step = Advance(sequence, sequence.known - sequence.computed)
        trial = self.ledger.trial()
        if not trial.take(step):
            self.release(sequence)
            return
        self.grow([step])
        assert self.ledger.num_blocks - self.ledger.used == trial.free
        table = self.tables[sequence.id]
        for position in range(sequence.computed, sequence.known):
            place = table[position // BLOCK], position % BLOCK
            self.held[place] = sequence.salt, *sequence.ids[: position + 1]
        sequence.computed = sequence.known
        self.ledger.share(sequence, sequence.computed)
        if sequence.generated == sequence.max_tokens - 1:
            self.release(sequence)
        else:
            sequence.ids.append(token)
            sequence.known += 1

    def release(self, sequence: Inference) -> None:
        free = self.ledger.freed([sequence])
        before = self.ledger.used
        self.ledger.release(sequence)
        self.ledger.forget(sequence)
        assert self.ledger.used == before - free
        self.residents.remove(sequence)
        del self.tables[sequence.id]

    def reads_its_own_prefix(self, sequence: Inference) -> None:
        for position in range(sequence.computed):
            place = self.tables[sequence.id][position // BLOCK], position % BLOCK
            assert self.held[place] == (sequence.salt, *sequence.ids[: position + 1])

    @invariant()
    def every_sequence_finds_what_it_computed(self) -> None:
        for sequence in self.residents:
            self.reads_its_own_prefix(sequence)

    @invariant()
    def the_books_close(self) -> None:
        used = {block for table in self.tables.values() for block in table}
        assert self.ledger.used == len(used)
        assert self.ledger.used + self.ledger.cached + len(self.ledger._free) == BUDGET
        assert not used & set(self.ledger._free)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(stateful_step_count=30)
