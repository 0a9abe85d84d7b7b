"""From the fields of `/v1/responses` to a valid call, whether it arrived on a connection or as a
line of a batch."""

from __future__ import annotations

from typing import Any

from api.http.body import of_schema
from api.http.errors import ApiError, show
from api.openai.generation import Generations
from api.responses.call import ResponseCall
from api.responses.generating import begun, generation_of
from api.responses.items import as_json, messages_of, new_id, stored_items
from api.responses.output import Output
from api.responses.schemas import ResponseRequest, name_in, refuse_by_name
from api.responses.shapes import InputItem, OutputItem
from api.responses.stored.kept import Kept


class Maker:
    """Any thread may call it."""

    def __init__(self, generations: Generations, kept: Kept) -> None:
        self._generations = generations
        self._kept = kept

    def make(
        self,
        owner: str,
        data: dict[str, Any],
        arrival_s: float,
        *,
        mark: str = "",
        stores: bool = True,
    ) -> ResponseCall:
        """`mark`: a part of the response's id. `stores`: the response is kept unless the call says
        whether it is. Raises ApiError."""
        refuse_by_name(data)
        wanted = of_schema(data, ResponseRequest)
        for kind in wanted.left_out:
            self._generations.note(f"tools of type {show(kind)}", "left out of a response")
        if wanted.store is not None:
            stores = wanted.store
        if wanted.background and not stores:
            raise ApiError(400, "field 'background' needs 'store' not to be false", param="store")
        previous = None
        items: list[InputItem | OutputItem] = []
        if wanted.previous_response_id is not None:
            previous, items = self._kept.earlier(owner, wanted.previous_response_id)
        own = stored_items(wanted.input)
        generation = generation_of(
            wanted, messages_of([*items, *own]), self._generations, arrival_s
        )
        if stores:
            self._kept.require_room(owner, len(as_json(own)))
        id = new_id(f"resp_{mark}" if mark else "resp")
        name, defaults = self._generations.served.name, self._generations.defaults
        response = begun(wanted, id, name, defaults, stores=stores)
        spaces = {
            name_in(space, one.name): (space, one.name)
            for space, one in wanted.functions
            if space is not None
        }
        return ResponseCall(owner, wanted, generation, Output(response, spaces), own, previous)
