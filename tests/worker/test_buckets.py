"""Bucket arithmetic."""

from __future__ import annotations

import pytest

from worker.buckets import COUNTS, LENGTHS, Buckets, option_slots

pytestmark = pytest.mark.once


def test_the_smallest_length_that_holds_the_row() -> None:
    buckets = Buckets(lengths=(32, 48, 64))
    assert [buckets.length_for(tokens, 1) for tokens in (1, 32, 33, 48, 64, 65)] == [32, 32, 48, 48, 64, None]


def test_many_options_need_a_longer_bucket() -> None:
    buckets = Buckets(lengths=(32, 64))
    assert buckets.length_for(30, option_slots(32)) == 32
    assert buckets.length_for(30, option_slots(32) + 1) == 64
    assert buckets.length_for(30, 100) is None


def test_every_length_has_room_for_its_options() -> None:
    for length in LENGTHS:
        assert option_slots(length) >= min(256, length // 2)


def test_a_pass_takes_as_many_rows_as_fit_its_tokens() -> None:
    assert Buckets(max_tokens=256).rows_that_fit([64, 40, 100, 52, 1]) == 4
    assert Buckets(max_tokens=256).rows_that_fit([400, 1]) == 1
    assert Buckets().rows_that_fit([32] * 40) == COUNTS[-1]


def test_the_smallest_count_that_holds_the_rows() -> None:
    assert [Buckets().count_for(rows) for rows in (1, 2, 3, 4, 5, 16)] == [1, 2, 4, 4, 8, 16]


def test_no_bucket_is_longer_than_the_model_and_one_is_as_long() -> None:
    assert Buckets(lengths=(32, 64, 512)).up_to(100).lengths == (32, 64, 100)
    assert Buckets(lengths=(32, 64)).up_to(64).lengths == (32, 64)
