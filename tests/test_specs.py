"""Arguments are checked before anything is sent: leases, waits, time-outs, durations (F28 to F30)."""

from __future__ import annotations

import asyncio
import decimal
import fractions
from datetime import timedelta
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast import specs

NOBODY = "redis://127.0.0.1:1/0"  # nobody listens there: whatever is sent fails
NOT_NUMBERS: list[object] = ["5", "", b"5", True, False, [], {}, object(), 1j]
NOT_FINITE: list[object] = [float("nan"), float("inf"), float("-inf"), decimal.Decimal("NaN")]
CLIENTS = [lockfast.Lockfast, lockfast.aio.Lockfast]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, None])
def test_lease_that_is_no_number_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="lease"):
        specs.lease_seconds(value)


@pytest.mark.parametrize("value", [*NOT_FINITE, 0, 0.0, -0.0, 0.001, 0.049, 0.0499999, -1, -30.0, 604801, 1e300])
def test_lease_that_cannot_be_kept_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="lease"):
        specs.lease_seconds(value)


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_lease_of_astronomic_size_is_refused(value: int) -> None:
    with pytest.raises((TypeError, ValueError), match="lease"):
        specs.lease_seconds(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.05, 0.05),
        (1, 1.0),
        (30.0, 30.0),
        (604800, 604800.0),
        (timedelta(milliseconds=250), 0.25),
        (timedelta(minutes=2), 120.0),
        (decimal.Decimal("1.5"), 1.5),
        (fractions.Fraction(1, 4), 0.25),
        (0.1234567, 0.123),
        (0.3, 0.3),
        (1.1, 1.1),
        (2.675, 2.675),
    ],
)
def test_lease_is_kept_in_whole_milliseconds_and_never_rounded_up(value: object, expected: float) -> None:
    assert specs.lease_seconds(value) == expected


def test_every_whole_number_of_milliseconds_is_kept_exactly() -> None:
    for ms in range(50, 5000):
        assert round(specs.lease_seconds(ms / 1000) * 1000) == ms


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_wait_that_is_no_number_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="wait"):
        specs.wait_seconds(value)


@pytest.mark.parametrize("value", [*NOT_FINITE, -1, -0.0001, 1e9])
def test_wait_that_makes_no_sense_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="wait"):
        specs.wait_seconds(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (0, 0.0), (-0.0, 0.0), (0.0001, 0.0001), (0.5, 0.5), (3, 3.0), (timedelta(seconds=2), 2.0)],
)
def test_wait_is_exact(value: object, expected: float | None) -> None:
    assert specs.wait_seconds(value) == expected


@pytest.mark.parametrize("value", [*NOT_NUMBERS, None])
def test_timeout_that_is_no_number_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="timeout"):
        specs.timeout_seconds(value)


@pytest.mark.parametrize("value", [*NOT_FINITE, 0, -1, 0.001, 3601])
def test_timeout_that_makes_no_sense_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="timeout"):
        specs.timeout_seconds(value)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("label", [7, b"web", True, ["web"]])
def test_label_that_is_no_text_is_a_type_error(client: Any, label: object) -> None:
    with pytest.raises(TypeError, match="label must be a str, got"):
        client(NOBODY, label=label)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("lease", [0, 0.01, -1, float("nan"), float("inf"), 1e300, "30", True, None])
def test_lock_with_a_bad_lease_is_refused_before_anything_is_sent(client: Any, lease: object) -> None:
    with pytest.raises((TypeError, ValueError), match="lease"):
        client(NOBODY).lock("x", lease=lease)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "5", True])
def test_lock_with_a_bad_wait_is_refused_before_anything_is_sent(client: Any, wait: object) -> None:
    with pytest.raises((TypeError, ValueError), match="wait"):
        client(NOBODY).lock("x", wait=wait)


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "5", True])
def test_acquire_with_a_bad_wait_is_refused_before_anything_is_sent(wait: object) -> None:
    with lockfast.Lockfast(NOBODY) as lf, pytest.raises((TypeError, ValueError), match="wait"):
        lf.lock("x").acquire(wait=wait)  # type: ignore[arg-type]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", ["", None, b"x", "a\0b", "x" * 1_000_000, 1.5])
def test_bad_names_are_refused_before_anything_is_sent(client: Any, name: object) -> None:
    with pytest.raises((TypeError, ValueError), match="name"):
        client(NOBODY).lock(name)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": "2"}, {"prefix": "a b"}, {"prefix": ""}])
def test_bad_settings_of_a_client_are_refused(client: Any, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        client(NOBODY, **options)


NOT_COUNTS: list[object] = [0, -1, True, False, "3", b"3", 1.5, 2.0, 10**9, 1_000_001, [], decimal.Decimal(3), 1j]


@pytest.mark.parametrize("value", [*NOT_COUNTS, None])
def test_limit_that_is_no_whole_number_in_reach_is_refused(value: object) -> None:
    kind = ValueError if type(value) is int else TypeError
    with pytest.raises(kind, match="limit"):
        specs.limit_count(value)
    with pytest.raises(kind, match="permits"):
        specs.permit_count(value, None)


def test_limits_and_permits_are_kept_as_they_are() -> None:
    assert [specs.limit_count(value) for value in (1, 2, 1_000_000)] == [1, 2, 1_000_000]
    assert [specs.permit_count(value, 5) for value in (1, 5)] == [1, 5]
    assert specs.permit_count(1_000_000, None) == 1_000_000


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("value", NOT_COUNTS)
def test_semaphore_of_a_bad_size_is_refused_before_anything_is_sent(client: Any, value: object) -> None:
    kind = ValueError if type(value) is int else TypeError
    with pytest.raises(kind, match="limit"):
        client(NOBODY).semaphore("x", limit=value)
    with pytest.raises(kind, match="permits"):
        client(NOBODY).semaphore("x", limit=3, permits=value)
    with pytest.raises(kind, match="permits"):
        client(NOBODY).semaphore("x", permits=value)


@pytest.mark.parametrize("client", CLIENTS)
def test_more_permits_than_the_limit_are_refused_before_anything_is_sent(client: Any) -> None:
    with pytest.raises(ValueError, match="permits"):
        client(NOBODY).semaphore("x", limit=3, permits=4)


@pytest.mark.parametrize("value", [*NOT_COUNTS, None])
def test_resize_to_a_bad_size_is_refused_before_anything_is_sent(value: Any) -> None:
    kind = ValueError if type(value) is int else TypeError
    with lockfast.Lockfast(NOBODY) as lf, pytest.raises(kind, match="limit"):
        lf.semaphore("x", limit=3).resize(value)

    async def resize() -> None:
        async with lockfast.aio.Lockfast(NOBODY) as lf:
            await lf.semaphore("x", limit=3).resize(value)

    with pytest.raises(kind, match="limit"):
        asyncio.run(resize())


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("make", ["semaphore", "rwlock"])
@pytest.mark.parametrize(
    ("option", "value"), [("lease", 0), ("lease", "30"), ("wait", -1), ("wait", True), ("renew", 1), ("on_lost", "me")]
)
def test_other_primitives_refuse_what_a_lock_refuses(client: Any, make: str, option: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=option):
        getattr(client(NOBODY), make)("x", **{option: value})
    with pytest.raises((TypeError, ValueError), match="name"):
        getattr(client(NOBODY), make)("")


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("30", 30.0),
        ("1.5", 1.5),
        (".5s", 0.5),
        ("1.5h", 5400.0),
        (" 10 s ", 10.0),
        ("0", 0.0),
    ],
)
def test_durations_as_people_type_them(text: str, expected_s: float) -> None:
    assert specs.parse_duration(text) == pytest.approx(expected_s)


@pytest.mark.parametrize("text", ["", "s", "5 minutes", "-5s", "1h30m", "nan", "inf", "1e3", "5S", "0x10", "٣s", "5,5"])
def test_what_is_no_duration_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        specs.parse_duration(text)
