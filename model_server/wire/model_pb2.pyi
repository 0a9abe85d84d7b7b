from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Addresses(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "parameters", "dtype", "device", "note", "layout", "context", "vocab_size", "rank", "shards", "kernels", "batch_invariant", "unused_gpu", "speculate")
    class KernelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    UNUSED_GPU_FIELD_NUMBER: _ClassVar[int]
    SPECULATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    parameters: int
    dtype: str
    device: str
    note: str
    layout: str
    context: int
    vocab_size: int
    rank: int
    shards: int
    kernels: _containers.ScalarMap[str, str]
    batch_invariant: bool
    unused_gpu: str
    speculate: int
    def __init__(self, name: _Optional[str] = ..., parameters: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., note: _Optional[str] = ..., layout: _Optional[str] = ..., context: _Optional[int] = ..., vocab_size: _Optional[int] = ..., rank: _Optional[int] = ..., shards: _Optional[int] = ..., kernels: _Optional[_Mapping[str, str]] = ..., batch_invariant: _Optional[bool] = ..., unused_gpu: _Optional[str] = ..., speculate: _Optional[int] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class HealthReport(_message.Message):
    __slots__ = ("ready", "session", "kv_tokens")
    READY_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    session: int
    kv_tokens: int
    def __init__(self, ready: _Optional[bool] = ..., session: _Optional[int] = ..., kv_tokens: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_batch_size",)
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    max_batch_size: int
    def __init__(self, max_batch_size: _Optional[int] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("blocks", "block_tokens", "max_total_tokens")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    block_tokens: int
    max_total_tokens: int
    def __init__(self, blocks: _Optional[int] = ..., block_tokens: _Optional[int] = ..., max_total_tokens: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("session", "lost")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    session: int
    lost: int
    def __init__(self, session: _Optional[int] = ..., lost: _Optional[int] = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("id", "ids", "prompt_tokens", "sampling", "scored", "trace", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_tokens: int
    sampling: bytes
    scored: int
    trace: str
    request_id: str
    def __init__(self, id: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., prompt_tokens: _Optional[int] = ..., sampling: _Optional[bytes] = ..., scored: _Optional[int] = ..., trace: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Openings(_message.Message):
    __slots__ = ("session", "number", "openings")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OPENINGS_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    openings: _containers.RepeatedCompositeFieldContainer[Opening]
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., openings: _Optional[_Iterable[_Union[Opening, _Mapping]]] = ...) -> None: ...

class Iteration(_message.Message):
    __slots__ = ("session", "number", "ids", "starts", "tokens", "draw", "padding", "block_counts", "blocks", "released", "drafts")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAW_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    draw: _containers.RepeatedScalarFieldContainer[bool]
    padding: _containers.RepeatedScalarFieldContainer[int]
    block_counts: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    released: _containers.RepeatedScalarFieldContainer[int]
    drafts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., draw: _Optional[_Iterable[bool]] = ..., padding: _Optional[_Iterable[int]] = ..., block_counts: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ..., released: _Optional[_Iterable[int]] = ..., drafts: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token", "logprob", "top_tokens", "top_logprobs")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class RowLogprobs(_message.Message):
    __slots__ = ("row", "first", "tokens")
    ROW_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    row: int
    first: int
    tokens: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, row: _Optional[int] = ..., first: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("row", "reason")
    ROW_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    row: int
    reason: str
    def __init__(self, row: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("digest", "token_counts", "tokens", "positions", "duration_s", "logprobs", "prompt_logprobs", "failed", "drafts")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    token_counts: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    positions: int
    duration_s: float
    logprobs: _containers.RepeatedCompositeFieldContainer[RowLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[RowLogprobs]
    failed: _containers.RepeatedCompositeFieldContainer[Failure]
    drafts: _containers.RepeatedCompositeFieldContainer[RowDrafts]
    def __init__(self, digest: _Optional[bytes] = ..., token_counts: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., positions: _Optional[int] = ..., duration_s: _Optional[float] = ..., logprobs: _Optional[_Iterable[_Union[RowLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[RowLogprobs, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., drafts: _Optional[_Iterable[_Union[RowDrafts, _Mapping]]] = ...) -> None: ...

class RowDrafts(_message.Message):
    __slots__ = ("row", "computed", "accepted")
    ROW_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    row: int
    computed: int
    accepted: int
    def __init__(self, row: _Optional[int] = ..., computed: _Optional[int] = ..., accepted: _Optional[int] = ...) -> None: ...
