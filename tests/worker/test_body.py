"""Content codings: whole bodies of one or many members, cut ones, and those that unpack to too much."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable

import pytest
import zstandard

from worker.body import decoded
from worker.errors import BodyIncomplete, BodyTooLarge

LIMIT = 1 << 20
TEXT = b'{"state": "Parcel 7731 arrived crushed", "questions": {}}' * 40


def zstd(data: bytes, *, checksum: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=checksum).compress(data)


@pytest.mark.parametrize("checksum", [True, False])
def test_a_zstd_frame_is_whole_or_refused_wherever_it_is_cut(checksum: bool) -> None:
    frame = zstd(TEXT, checksum=checksum)
    assert decoded(frame, "zstd", LIMIT) == TEXT
    for end in range(1, len(frame)):
        with pytest.raises(BodyIncomplete):
            decoded(frame[:end], "zstd", LIMIT)
        with pytest.raises(BodyIncomplete):
            decoded(frame + frame[:end], "zstd", LIMIT)


def test_a_gzip_member_is_whole_or_refused_wherever_it_is_cut() -> None:
    member = gzip.compress(TEXT)
    for end in range(1, len(member)):
        with pytest.raises(BodyIncomplete):
            decoded(member[:end], "gzip", LIMIT)
        with pytest.raises(BodyIncomplete):
            decoded(member + member[:end], "gzip", LIMIT)


@pytest.mark.parametrize(("pack", "coding"), [(zstd, "zstd"), (gzip.compress, "gzip")])
def test_members_and_frames_follow_one_another(pack: Callable[[bytes], bytes], coding: str) -> None:
    pieces = [TEXT[low : low + 7] for low in range(0, len(TEXT), 7)]
    assert decoded(b"".join(map(pack, [*pieces, b""])), coding, LIMIT) == TEXT
    with pytest.raises(BodyIncomplete):
        decoded(pack(TEXT) + b"more", coding, LIMIT)


def test_a_skippable_frame_is_no_content() -> None:
    # RFC 8878 section 3.1.2
    skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    assert decoded(skipped + zstd(TEXT) + skipped, "zstd", LIMIT) == TEXT


@pytest.mark.parametrize(("pack", "coding"), [(zstd, "zstd"), (gzip.compress, "gzip")])
def test_the_limit_is_on_all_that_comes_out(pack: Callable[[bytes], bytes], coding: str) -> None:
    half = b" " * (LIMIT // 2)
    assert len(decoded(pack(half) + pack(half), coding, LIMIT)) == LIMIT
    for over in (pack(half) + pack(half) + pack(b" "), pack(b" " * (100 * LIMIT))):
        with pytest.raises(BodyTooLarge):
            decoded(over, coding, LIMIT)


def seconds_of(members: int, data: bytes) -> float:
    body = gzip.compress(data) * members
    began = time.process_time()
    assert decoded(body, "gzip", 1 << 30) == data * members
    return time.process_time() - began


def test_many_gzip_members_cost_no_more_than_their_number() -> None:
    # Copying what was decoded at every member would make eight times the members cost sixty-four times as much.
    data = b" " * 20_000
    few, many = (min(seconds_of(members, data) for _ in range(3)) for members in (250, 2000))
    assert many < 30 * few
