"""A third party's driver (PyPI aetcd, on gRPC's C core) through the proxy.

Arguments: port, the ticket of an older grant of `orders`, the ticket of the present one.
"""

import asyncio
import sys

import aetcd
from aetcd import exceptions


async def refused(awaitable):
    try:
        await awaitable
    except exceptions.PreconditionFailedError as error:
        return str(error)
    raise AssertionError("it was served")


async def main(port, old, new):
    async with aetcd.Client(port=port) as client:
        # What no rule covers, without a ticket.
        await client.put(b"free/1", b"1")
        assert "orders" in await refused(client.put(b"orders", b"x"))

        client.metadata = (("fencing-token", old),)
        await client.put(b"orders", b"old")
        client.metadata = (("fencing-token", new),)
        assert (await client.get(b"orders")).value == b"old"
        done, _ = await client.transaction(
            compare=[client.transactions.value(b"orders") == b"old"],
            success=[
                client.transactions.put(b"orders", b"new"),
                client.transactions.get(b"orders"),
            ],
            failure=[client.transactions.put(b"orders", b"wrong")],
        )
        assert done
        done, _ = await client.transaction(
            compare=[client.transactions.value(b"orders") == b"old"],
            success=[client.transactions.put(b"orders", b"wrong")],
            failure=[],
        )
        assert not done
        client.metadata = (("fencing-token", old),)
        await refused(client.put(b"orders", b"late"))
        await refused(client.get(b"orders"))

        client.metadata = (("fencing-token", new),)
        keys = [item.key for item in await client.get_all()]
        assert keys == [b"free/1", b"orders"], keys
        assert (await client.get(b"orders")).value == b"new"

        client.metadata = None
        events = await client.watch_prefix(b"free/")
        await client.put(b"free/2", b"2")
        async for event in events:
            assert event.kv.key == b"free/2", event
            break
        await events.cancel()
        lease = await client.lease(60)
        await client.put(b"free/3", b"3", lease=lease)
        await client.revoke_lease(lease.id)
        assert await client.get(b"free/3") is None
        assert (await client.delete_prefix(b"free/")).deleted == 2
        assert (await client.status()).version


asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
print("all as expected")
