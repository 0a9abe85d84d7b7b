from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

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

class Openings(_message.Message):
    __slots__ = ("session", "number", "openings")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OPENINGS_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    openings: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., openings: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Iteration(_message.Message):
    __slots__ = ("session", "number", "steps", "released")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    steps: bytes
    released: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., steps: _Optional[bytes] = ..., released: _Optional[_Iterable[int]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("digest", "outcome")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    outcome: bytes
    def __init__(self, digest: _Optional[bytes] = ..., outcome: _Optional[bytes] = ...) -> None: ...
