"""The decoder gives the tokens of full recomputation: cached, batched, in pieces, and divided over processes."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from campaign.errors import ConfigError
from campaign.workloads.gpt_server.batching import Batcher, Feed
from campaign.workloads.gpt_server.decoder import SIZES, Decoder, random_weights
from campaign.workloads.gpt_server.device_pace import DevicePace
from campaign.workloads.trainer.models.language import Gpt

SIZE = SIZES["gpt-nano"]
WEIGHTS = random_weights(SIZE, seed=7)
PROMPTS = [[5, 900, 17, 4, 31], [1], [2047, 0, 3] * 5, list(range(7, 407, 10))]


@functools.cache
def _all_recomputed(prompt: tuple[int, ...]) -> list[int]:
    network = Gpt(SIZE, dropout=0.0)
    network.load_state_dict(dict(WEIGHTS))
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(12):
            tokens.append(int(network.eval()(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def _recomputed(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that follow, at most twelve, by the trainer's network, which has no cache."""
    return _all_recomputed(tuple(prompt))[:count]


def _decoded(decoder: Decoder, prompt: Sequence[int], count: int, slot: int = 0) -> list[int]:
    tokens = list(prompt)
    fed = 0
    for _ in range(count):
        (token,) = decoder.next_tokens([Feed(slot, fed, tokens[fed:])])
        fed = len(tokens)
        tokens.append(token)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_cached_decoding_gives_the_tokens_of_full_recomputation(prompt: list[int]) -> None:
    found = _decoded(Decoder(SIZE, WEIGHTS, slots=2, context=64), prompt, 12, slot=1)
    assert found == _recomputed(prompt, 12)
    assert len(set(found)) > 1, "a network that repeats itself shows nothing"


def test_a_batch_gives_the_tokens_of_each_alone_in_reused_slots_and_with_a_prompt_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "campaign.workloads.gpt_server.batching.MOST_TOKENS", 16
    )  # a prompt of 40 takes three iterations
    found: list[list[int]] = [[] for _ in PROMPTS * 2]
    batcher = Batcher(Decoder(SIZE, WEIGHTS, slots=3, context=64).next_tokens, slots=3)

    def take(number: int, token: int | None) -> None:
        assert token is not None
        found[number].append(token)
        if all(len(tokens) == 10 for tokens in found):
            batcher.stop()

    for number, prompt in enumerate(PROMPTS * 2):
        batcher.submit(prompt, 10, lambda token, number=number: take(number, token))
    batcher.run()
    assert found == [_recomputed(prompt, 10) for prompt in PROMPTS] * 2
    assert batcher.counts.output_tokens == 80
    assert 2 < batcher.counts.fed_sequences / batcher.counts.iterations <= 3


class _Threads:
    """A group whose processes are threads."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, parts: list[Tensor]) -> None:
        self.rank, self.size, self._meeting, self._parts = rank, size, meeting, parts

    def sum(self, part: Tensor) -> Tensor:
        return torch.stack(self._exchanged(part)).sum(0)

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        parts = self._exchanged(part)
        return parts if self.rank == 0 else []

    def _exchanged(self, part: Tensor) -> list[Tensor]:
        self._parts[self.rank] = part
        self._meeting.wait(10)
        parts = list(self._parts)
        self._meeting.wait(10)
        return parts


@pytest.mark.parametrize("ranks", [2, 4])
def test_divided_over_processes_it_gives_the_same_tokens(ranks: int) -> None:
    meeting, parts = threading.Barrier(ranks), [torch.empty(0)] * ranks
    decoders = [
        Decoder(SIZE, WEIGHTS, slots=1, context=64, group=_Threads(rank, ranks, meeting, parts))
        for rank in range(ranks)
    ]
    fed, tokens = 0, list(PROMPTS[0])
    for _ in range(6):
        feeds = [Feed(0, fed, tokens[fed:])]
        others = [threading.Thread(target=decoder.next_tokens, args=(feeds,)) for decoder in decoders[1:]]
        for other in others:
            other.start()
        (token,) = decoders[0].next_tokens(feeds)
        for other in others:
            other.join()
        fed = len(tokens)
        tokens.append(token)
    assert tokens[len(PROMPTS[0]) :] == _recomputed(PROMPTS[0], 6)


class _Counted:
    """A pace that counts operations."""

    lost_s = 0.0

    def __init__(self) -> None:
        self.operations = 0.0

    def begin(self) -> None:
        pass

    def worked(self, operations: float) -> None:
        self.operations += operations

    def end(self) -> None:
        pass


def test_operations_are_those_of_all_products_and_few_tokens_read_the_whole_network() -> None:
    pace = _Counted()
    decoder = Decoder(SIZE, WEIGHTS, slots=1, context=64, pace=pace, least_tokens=8)
    decoder.next_tokens([Feed(0, 0, [3] * 20)])
    in_layers = 12 * SIZE.width**2 * SIZE.layers
    assert pace.operations == pytest.approx(
        2 * 20 * in_layers + 4 * 20 * 20 * SIZE.width * SIZE.layers + 2 * 8 * SIZE.vocabulary * SIZE.width
    )
    pace.operations = 0
    decoder.next_tokens([Feed(0, 20, [3])])
    one = pace.operations
    assert one == pytest.approx(2 * 8 * (in_layers + SIZE.vocabulary * SIZE.width), rel=0.01)


def test_a_paced_decoder_takes_the_time_of_its_device() -> None:
    pace = DevicePace(gflops=0.05)
    decoder = Decoder(SIZE, WEIGHTS, slots=1, context=64, pace=pace)
    started_s = time.perf_counter()
    _decoded(decoder, PROMPTS[0], 5)
    took_s = time.perf_counter() - started_s
    # Nine tokens through layers of 0.79 MFLOP, five of them through a head of 0.52 MFLOP.
    assert took_s > 0.95 * (9 * 0.79e6 + 5 * 0.52e6) / 0.05e9


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="4 attention heads cannot be divided over 3 processes"):
        Decoder(SIZE, WEIGHTS, 1, 64, group=_Threads(0, 3, threading.Barrier(3), []))
    with pytest.raises(ConfigError, match="1024 positions, fewer than 2000"):
        Decoder(SIZE, WEIGHTS, 1, 2000)
