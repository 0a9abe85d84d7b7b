"""The stored responses of the present client: what it may continue, read, cancel and delete."""

from __future__ import annotations

import time

from pydantic_core import from_json, to_json

from api.http.errors import ApiError, store_refusal
from api.responses.items import Json
from api.responses.output import GeneratedResponse, ResponseCall, ResponseFault
from deferred.entities import StoredResponse
from deferred.errors import ConversationTooLongError, NotFoundError, StoreError
from deferred.jobs import Jobs
from serving.config import Config

DAY_S = 86_400
MOST_CONVERSATION_BYTES = 16 * 2**20
LOST_AFTER_S = 60.0  # after the longest time that a request may take
LOST = "the server ended before the response was complete"


class StoredResponses:
    """Raises StoreError, where nothing else is said. Any thread may call it."""

    def __init__(self, jobs: Jobs, config: Config) -> None:
        self._jobs = jobs
        self._config = config

    def require_room(self, owner: str, own: list[Json]) -> None:
        """Raises ApiError if no response with this input can be stored."""
        try:
            store, most_bytes = self._jobs.store.responses, self._config.max_stored_bytes
            store.require_room(owner, len(to_json(own)), most_bytes)
        except StoreError as error:
            refused = store_refusal(error)
            if refused.status == 503:
                refused.message += '; a response with "store": false needs none'
            raise refused from error

    def earlier(self, owner: str, response_id: str) -> tuple[int, list[Json]]:
        """The number of a response, and the items of its conversation. Raises ApiError."""
        field, now_s = "previous_response_id", time.time()
        try:
            responses = self._jobs.store.responses.conversation(
                owner, response_id, now_s, most_bytes=MOST_CONVERSATION_BYTES
            )
        except NotFoundError as error:
            raise ApiError(
                404, str(error), param=field, code="previous_response_not_found"
            ) from error
        except ConversationTooLongError as error:
            raise ApiError(400, str(error), param=field) from error
        newest = responses[-1]
        if newest.lost_at is not None and newest.lost_at > now_s:
            raise ApiError(400, f"the response {response_id} is not complete yet", param=field)
        items: list[Json] = []  # not as models: there may be thousands
        for response in responses:
            items += from_json(response.input)
            items += from_json(response.body)["output"]
        return newest.number, items

    def create(self, call: ResponseCall) -> None:
        """A response in the background has not ended yet."""
        now_s, response = time.time(), call.output.response
        lost_at = None
        if response.status == "queued":
            lost_at = now_s + self._config.request_timeout + LOST_AFTER_S
        self._jobs.store.responses.create(
            StoredResponse(
                id=response.id,
                owner=call.owner,
                previous=call.previous,
                created_at=now_s,
                expires_at=now_s + self._config.response_retention_days * DAY_S,
                lost_at=lost_at,
                input=to_json(call.own),
                body=to_json(response),
            )
        )

    def end(self, response: GeneratedResponse) -> bool:
        """Of one in the background; False if it has ended already, or is gone."""
        return self._jobs.store.responses.end(response.id, to_json(response))

    def read(self, owner: str, response_id: str) -> tuple[bool, GeneratedResponse]:
        """Whether it is being generated, and the response; of one that is, as it began."""
        now_s = time.time()
        stored = self._jobs.store.responses.get(owner, response_id, now_s)
        response = GeneratedResponse.model_validate_json(stored.body)
        if stored.lost_at is None or stored.lost_at > now_s:
            return stored.lost_at is not None, response
        response.status = "failed"
        response.error = ResponseFault(code="server_error", message=LOST)
        return False, response
