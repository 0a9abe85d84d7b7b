"""The stored responses of the present client: what it may continue, read, cancel and delete."""

from __future__ import annotations

import json
import time
from typing import cast

from api.http.errors import ApiError
from api.jobs.store import explain
from api.responses.items import as_json
from api.responses.output import ResponseCall
from api.responses.shapes import GeneratedResponse, InputItem, OutputItem
from deferred.entities import NewResponse
from deferred.errors import ConversationTooLongError, NotFoundError, StoreError
from deferred.jobs import Jobs
from serving.config import Config

DAY_S = 86_400
MOST_CONVERSATION_BYTES = 16 * 2**20
LOST_AFTER_S = 60.0  # after the longest time that a request may take
LOST = "the server ended before the response was complete"
UNAVAILABLE = 503


class Kept:
    """Raises StoreError, where nothing else is said. Any thread may call it."""

    def __init__(self, jobs: Jobs, config: Config) -> None:
        self._jobs = jobs
        self._config = config

    def require_room(self, owner: str, size_bytes: int) -> None:
        """Raises ApiError if no response can be stored."""
        try:
            store = self._jobs.store.responses
            store.require_room(owner, size_bytes, self._config.max_stored_bytes)
        except StoreError as error:
            told = explain(error)
            if told.status == UNAVAILABLE:
                told.message += '; a response with "store": false needs none'
            raise told from error

    def earlier(self, owner: str, response_id: str) -> tuple[int, list[InputItem | OutputItem]]:
        """The number of a response, and the items of its conversation. Raises ApiError."""
        field = "previous_response_id"
        try:
            responses = self._jobs.store.responses.conversation(
                owner, response_id, time.time(), most_bytes=MOST_CONVERSATION_BYTES
            )
        except NotFoundError as error:
            raise ApiError(
                404, str(error), param=field, code="previous_response_not_found"
            ) from error
        except ConversationTooLongError as error:
            raise ApiError(400, str(error), param=field) from error
        except StoreError as error:
            raise explain(error) from error
        newest = responses[-1]
        if newest.lost_at is not None and newest.lost_at > time.time():
            raise ApiError(400, f"the response {response_id} is not complete yet", param=field)
        items: list[InputItem | OutputItem] = []
        for response in responses:
            items += json.loads(response.input)
            items += json.loads(response.body)["output"]
        return newest.number, items

    def create(self, call: ResponseCall) -> None:
        """A response in the background has not ended yet."""
        now_s, response = time.time(), call.output.response
        lost_at = None
        if response["status"] == "queued":
            lost_at = now_s + self._config.request_timeout + LOST_AFTER_S
        self._jobs.store.responses.create(
            call.owner,
            NewResponse(
                response["id"],
                as_json(call.own),
                as_json(response),
                now_s + self._config.response_retention_days * DAY_S,
                call.previous,
                lost_at,
            ),
            now_s,
        )

    def end(self, response: GeneratedResponse) -> bool:
        """Of one in the background; False if it has ended already, or is gone."""
        return self._jobs.store.responses.end(response["id"], as_json(response))

    def read(self, owner: str, response_id: str) -> tuple[bool, GeneratedResponse]:
        """Whether it is being generated, and the response; of one that is, as it began."""
        now_s = time.time()
        stored = self._jobs.store.responses.get(owner, response_id, now_s)
        response: GeneratedResponse = json.loads(stored.body)
        if stored.lost_at is None or stored.lost_at > now_s:
            return stored.lost_at is not None, response
        response["status"] = "failed"
        response["error"] = {"code": "server_error", "message": LOST}
        return False, response

    def input_items(self, owner: str, response_id: str) -> list[InputItem]:
        stored = self._jobs.store.responses.get(owner, response_id, time.time())
        return cast(list[InputItem], json.loads(stored.input))

    def delete(self, owner: str, response_id: str) -> None:
        self._jobs.store.responses.delete(owner, response_id, time.time())
