"""Lesson 4: blocks of memory. The page is learn/4-blocks.md."""

from learn.memory import PlainMemory


class KVBlocks(PlainMemory):
    def blocks_of(self, tokens):
        # Yours: how many blocks hold so many tokens? The last one need not be full.
        raise NotImplementedError("`blocks_of` returns a number of blocks")

    def admission(self, request):
        # Yours: how many blocks does this request need until its end? It has `request.known` tokens
        # and will generate `request.max_tokens - request.generated` more.
        raise NotImplementedError("`admission` returns a number of blocks")

    def fit(self, requests, releasing=()):
        # Yours: how many of the first of these requests can have their blocks together? The first
        # one that does not fit ends the count. (`releasing` stays unused here.)
        raise NotImplementedError("`fit` returns a number of requests")

    def open(self, requests):
        # Yours, before `return`: take blocks from self.free for each request, into self.table
        raise NotImplementedError("`open` fills self.table")
        return [0] * len(requests)  # tokens that it need not compute: none

    def release(self, request):
        # Yours: its blocks return to self.free, and it has no table any more
        raise NotImplementedError("`release` gives blocks back")
