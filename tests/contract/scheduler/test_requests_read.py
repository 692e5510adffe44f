"""What waiters read of requests: heads in order, and only the results that are settled and small."""

import pytest

from services.common.errors import ContractViolation, Gone
from services.common.ids import RequestId
from services.scheduler.results import Results
from services.scheduler.store import keys
from services.scheduler.store.payloads import FileBlobs
from services.scheduler.store.requests import RequestReader

KEY = "0" * 32
LIMIT = 100


@pytest.fixture
def blobs(tmp_path):
    return FileBlobs(tmp_path)


@pytest.fixture
def reader(redis_client, functions, blobs):
    return RequestReader(redis_client, functions, blobs)


async def _row(redis, request, **fields):
    head = {"request_id": str(request), "tenant": "t", "state": "done", "expires_ms": "0", "seq": "7", **fields}
    await redis.hset(keys.req(request.pool, request.key), mapping=head)


async def _one(reader, request):
    return (await reader.readings([request], LIMIT))[0]


async def test_a_small_result_comes_with_its_head(reader, redis_client):
    request = RequestId("p", KEY, 0)
    await _row(redis_client, request, result=b"\x00whole", result_bytes="6")
    reading = await _one(reader, request)
    assert (reading.head.tenant_id, reading.head.seq, reading.head.settled) == ("t", 7, True)
    assert reading.parts.whole == b"\x00whole"


async def test_batch_parts_come_by_their_first_datum(reader, redis_client):
    request = RequestId("p", KEY, 0)
    await _row(redis_client, request, result_bytes="2")
    await redis_client.hset(keys.outputs("p", KEY), mapping={"0": b"a", "4": b"b"})
    assert (await _one(reader, request)).parts.batch == {0: b"a", 4: b"b"}


async def test_a_large_result_is_left_to_its_own_read(reader, redis_client):
    request = RequestId("p", KEY, 0)
    await _row(redis_client, request, result=b"x" * (LIMIT + 1), result_bytes=str(LIMIT + 1))
    reading = await _one(reader, request)
    assert reading.head.settled
    assert reading.parts is None


async def test_a_pending_request_has_a_head_only(reader, redis_client):
    request = RequestId("p", KEY, 0)
    await _row(redis_client, request, state="running")
    reading = await _one(reader, request)
    assert not reading.head.settled
    assert reading.parts is None


async def test_unknown_expired_and_earlier_generations_have_no_head(reader, redis_client):
    expired, known = RequestId("p", "1" * 32, 0), RequestId("p", "2" * 32, 1)
    await _row(redis_client, expired, expires_ms="1", result=b"r", result_bytes="1")
    await _row(redis_client, known)
    asked = [RequestId("p", KEY, 0), expired, RequestId("p", "2" * 32, 0), known]
    assert [r.head is None for r in await reader.readings(asked, LIMIT)] == [True, True, True, False]


async def test_answers_keep_the_order_over_several_pools(reader, redis_client):
    asked = [RequestId(pool, KEY, n) for n, pool in enumerate(("b", "a", "c"))]
    for request in asked:
        await _row(redis_client, request, result=request.pool.encode(), result_bytes="1")
    assert [r.parts.whole for r in await reader.readings(asked, LIMIT)] == [b"b", b"a", b"c"]


class SweptReader(RequestReader):
    """The row goes after its head was read, as a sweep does with what has expired."""

    async def results(self, requests):
        await self._redis.delete(*(keys.req(request.pool, request.key) for request in requests))
        return await super().results(requests)


async def test_a_result_that_expires_between_two_reads_is_gone(redis_client, functions, blobs):
    request = RequestId("p", KEY, 0)
    await _row(redis_client, request, result=b"r", result_bytes="1")
    with pytest.raises(Gone, match="expired"):
        await Results(SweptReader(redis_client, functions, blobs), delivered_grace_ms=1).whole(str(request), "t")


async def test_a_settled_request_without_a_result_is_our_fault(reader, redis_client):
    request = RequestId("p", KEY, 0)
    await _row(redis_client, request, result_bytes="1")
    with pytest.raises(ContractViolation):
        await Results(reader, delivered_grace_ms=1).whole(str(request), "t")
