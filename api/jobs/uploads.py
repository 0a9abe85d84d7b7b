"""An upload: `multipart/form-data`, read piece by piece and never held whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio import multipart

from api.http.errors import ApiError

PIECE_BYTES = 64 * 1024
MOST_FIELD_BYTES = 1024
MOST_PARTS = 16


@dataclass(slots=True)
class Upload:
    """`fields` are complete when the content was read to its end."""

    filename: str
    content: Iterator[bytes]
    fields: dict[str, str] = field(default_factory=dict)


def read_upload(stream: IO[bytes], boundary: bytes) -> Upload:
    """The form up to the beginning of its part `file`. Raises ApiError, as does the content, if
    it is not such a form."""
    fields: dict[str, str] = {}
    events = _events(stream, boundary)
    for event in events:
        if isinstance(event, multipart.File):
            if event.name != "file":
                raise ApiError(400, f"the form's file must be named 'file', not '{event.name}'")
            return Upload(event.filename, _content(events, fields), fields)
        if isinstance(event, multipart.Field):
            _read_field(event, events, fields)
    raise ApiError(
        400, "the form has no file; it needs a part named 'file' with a file name", param="file"
    )


def _content(events: Iterator[multipart.Event], fields: dict[str, str]) -> Iterator[bytes]:
    for event in events:
        assert isinstance(event, multipart.Data)
        yield event.data
        if not event.more_data:
            break
    for event in events:
        if isinstance(event, multipart.File):
            raise ApiError(400, "the form has more than one file", param="file")
        if isinstance(event, multipart.Field):
            _read_field(event, events, fields)


def _read_field(
    event: multipart.Field, events: Iterator[multipart.Event], fields: dict[str, str]
) -> None:
    value = b""
    for part in events:
        assert isinstance(part, multipart.Data)
        value += part.data
        if len(value) > MOST_FIELD_BYTES:
            raise ApiError(
                400, f"the form's field '{event.name}' is longer than {MOST_FIELD_BYTES} bytes"
            )
        if not part.more_data:
            break
    fields[event.name] = value.decode(errors="replace")


def _events(stream: IO[bytes], boundary: bytes) -> Iterator[multipart.Event]:
    decoder = multipart.MultipartDecoder(
        boundary, max_form_memory_size=4 * PIECE_BYTES, max_parts=MOST_PARTS
    )
    while True:
        piece = stream.read(PIECE_BYTES)
        event: multipart.Event | None = None
        while not isinstance(event, multipart.NeedData):
            try:
                if event is None:
                    decoder.receive_data(piece or None)
                event = decoder.next_event()
            except RequestEntityTooLarge:
                raise ApiError(
                    400,
                    f"the form has more than {MOST_PARTS} parts, or headers of a part that are "
                    "too long",
                ) from None
            except (ValueError, AttributeError) as error:  # of a form that is cut off or malformed
                raise ApiError(400, f"the body is not a complete multipart form: {error}") from None
            if isinstance(event, multipart.Epilogue):
                return
            if not isinstance(event, multipart.NeedData):
                yield event
