"""Requests and answers of the OpenAI interface: completions and chat completions, whole or as server-sent events.

Tokens are words, so that a prompt of N words has N tokens. The most probable token always follows; no text ends by itself.
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from campaign.errors import first_problem


class Refused(Exception):
    """An error as OpenAI's interface answers it."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status, self.body = status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def encode(text: str, vocabulary: int) -> list[int]:
    """One token a word; a word of an answer is the token that it stands for."""
    return [
        int(word[1:])
        if word[:1] == "w" and word[1:].isdecimal() and int(word[1:]) < vocabulary
        else _hashed(word, vocabulary)
        for word in text.split()
    ]


def _hashed(word: str, vocabulary: int) -> int:
    return zlib.crc32(word.encode()) % vocabulary


class _StreamOptions(BaseModel):
    include_usage: bool = False


class Request(BaseModel):
    """What both kinds of requests have. What would change the answer and cannot be honoured is refused; temperature is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    path: ClassVar[str]
    answer: ClassVar[str]
    streamed: ClassVar[str]
    model: str | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: Literal[1, None] = None
    best_of: Literal[1, None] = None
    echo: Literal[False, None] = None
    logprobs: Literal[False, None] = None
    stop: None = None
    suffix: None = None
    tools: None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def tokens(self, vocabulary: int) -> list[int]:
        """The prompt."""
        raise NotImplementedError

    def limit(self, room: int) -> int:
        """How many tokens are asked for, where so many fit in the context."""
        raise NotImplementedError

    def choice(self, text: str, first: bool, finish_reason: str | None, streamed: bool) -> dict[str, Any]:
        """The only choice of an answer, or of one of its chunks."""
        raise NotImplementedError


class Completion(Request):
    """`POST /v1/completions`."""

    path, answer, streamed = "/v1/completions", "text_completion", "text_completion"
    prompt: str | tuple[int, ...]
    max_tokens: int = Field(default=16, ge=1)

    def tokens(self, vocabulary: int) -> list[int]:
        if isinstance(self.prompt, str):
            return encode(self.prompt, vocabulary)
        if wrong := [token for token in self.prompt if not 0 <= token < vocabulary]:
            raise Refused(400, f"prompt: token {wrong[0]} is not from 0 to {vocabulary - 1}", param="prompt")
        return list(self.prompt)

    def limit(self, room: int) -> int:
        return self.max_tokens

    def choice(self, text: str, first: bool, finish_reason: str | None, streamed: bool) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    role: str
    content: str


class Chat(Request):
    """`POST /v1/chat/completions`."""

    path, answer, streamed = "/v1/chat/completions", "chat.completion", "chat.completion.chunk"
    messages: tuple[_Message, ...] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)

    def tokens(self, vocabulary: int) -> list[int]:
        return encode(" ".join(message.content for message in self.messages), vocabulary)

    def limit(self, room: int) -> int:
        return self.max_completion_tokens or self.max_tokens or max(1, room)

    def choice(self, text: str, first: bool, finish_reason: str | None, streamed: bool) -> dict[str, Any]:
        message = {"content": text} if streamed and not first else {"role": "assistant", "content": text}
        key = "delta" if streamed else "message"
        return {"index": 0, key: message, "logprobs": None, "finish_reason": finish_reason}


def parsed(kind: type[Request], content: bytes, model: str) -> Request:
    """The request; Refused says what is wrong with it."""
    try:
        request = kind.model_validate_json(content)
    except ValidationError as error:
        raise Refused(400, first_problem(error, "the body")) from error
    if request.model not in (None, model):
        message = f"The model `{request.model}` does not exist; this server has `{model}`"
        raise Refused(404, message, "model_not_found", "model")
    return request


def fitting(request: Request, vocabulary: int, context: int) -> tuple[list[int], int]:
    """The tokens of the prompt and how many are to follow; Refused when they exceed the context."""
    tokens = request.tokens(vocabulary)
    if not tokens:
        raise Refused(400, "the prompt has no token", param="prompt")
    limit = request.limit(context - len(tokens))
    if len(tokens) + limit > context:
        message = (
            f"This model's maximum context length is {context} tokens. However, you requested {len(tokens) + limit} tokens "
            f"({len(tokens)} in the prompt, {limit} in the completion). Reduce the length of either."
        )
        raise Refused(400, message, "context_length_exceeded")
    return tokens, limit


class Answer:
    """The texts of one answer's documents."""

    def __init__(self, request: Request, model: str, prompt_tokens: int, limit: int) -> None:
        self._request, self._prompt_tokens, self._limit = request, prompt_tokens, limit
        self._head = {"id": f"cmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._sent = 0

    def whole(self, tokens: Sequence[int]) -> dict[str, Any]:
        choice = self._request.choice(_text(tokens), True, "length", False)
        return {**self._head, "object": self._request.answer, "choices": [choice], "usage": self._usage(len(tokens))}

    def event(self, token: int) -> str:
        """The event of the next token, with what ends the stream after the last one."""
        self._sent += 1
        last = self._sent == self._limit
        choice = self._request.choice(_text([token]), self._sent == 1, "length" if last else None, True)
        chunks: list[Mapping[str, Any]] = [{"choices": [choice]}]
        if self._request.include_usage:
            chunks = [{"choices": [choice], "usage": None}]
            chunks += [{"choices": [], "usage": self._usage(self._sent)}] if last else []
        head = {**self._head, "object": self._request.streamed}
        return _events(json.dumps({**head, **chunk}) for chunk in chunks) + (_events(["[DONE]"]) if last else "")

    def _usage(self, output_tokens: int) -> dict[str, int]:
        total = self._prompt_tokens + output_tokens
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": output_tokens, "total_tokens": total}


def _text(tokens: Iterable[int]) -> str:
    return "".join(f" w{token}" for token in tokens)


def _events(texts: Iterable[str]) -> str:
    return "".join(f"data: {text}\n\n" for text in texts)
