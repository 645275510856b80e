"""asyncpg through the proxy: port, an older ticket, a newer one."""

import asyncio
import sys

import asyncpg

port, old, new = sys.argv[1:]
place = dict(host="127.0.0.1", port=int(port), user="app", database="app")


async def refused(code, work):
    try:
        await work
    except asyncpg.PostgresError as error:
        assert error.sqlstate == code, (error.sqlstate, error)
        return
    raise SystemExit(f"not refused: {code}")


async def features(connection):
    assert await connection.fetchval("SELECT $1::int + 1", 41) == 42
    rows = [(n, str(n)) for n in range(100)]
    await connection.executemany("INSERT INTO plain VALUES ($1, $2)", rows)
    await connection.copy_records_to_table("plain", records=rows)
    assert await connection.fetchval("SELECT count(*) FROM plain") == 200
    async with connection.transaction():
        await connection.execute("UPDATE orders SET note = 'first again'")
        try:
            async with connection.transaction():
                await connection.execute("UPDATE orders SET note = 'never'")
                await connection.execute("SELECT 1/0")
        except asyncpg.DivisionByZeroError:
            pass
        cursor = await connection.cursor("SELECT id FROM plain")
        assert len(await cursor.fetch(150)) == 150
    assert await connection.fetchval("SELECT note FROM orders") == "first again"
    heard = asyncio.get_running_loop().create_future()
    await connection.add_listener("news", lambda *told: heard.set_result(told[3]))
    await connection.execute("NOTIFY news, 'hello'")
    assert await asyncio.wait_for(heard, 10) == "hello"
    await connection.remove_listener("news", lambda *told: None)


async def pools():
    """A pool resets its connections: the ticket of the start stays, that of SET goes."""
    settings = {"ringfence.token": new}
    async with asyncpg.create_pool(
        **place, min_size=1, max_size=1, server_settings=settings
    ) as pool:
        for _ in range(3):
            async with pool.acquire() as connection:
                await connection.execute("UPDATE orders SET note = 'second'")
                await connection.execute("SET ringfence.token = ''")
                await refused("RF002", connection.execute("DELETE FROM orders"))


async def main():
    plain = await asyncpg.connect(**place)
    assert await plain.fetchval("SELECT note FROM orders") == "first"
    await refused("RF002", plain.execute("DELETE FROM orders"))
    await refused("RF002", plain.fetch("DELETE FROM orders WHERE id = $1", 1))
    first = await asyncpg.connect(**place, server_settings={"ringfence.token": old})
    await features(first)
    waiting = asyncio.create_task(first.fetch("SELECT pg_sleep(60)"))
    await asyncio.sleep(0.3)
    # asyncpg sends a cancel request on another connection.
    waiting.cancel()
    try:
        await waiting
    except asyncio.CancelledError:
        pass
    assert await first.fetchval("SELECT 1") == 1
    await plain.execute(f"SET ringfence.token = '{new}'")
    assert await plain.fetchval("SELECT note FROM orders") == "first again"
    await refused("RF001", first.execute("UPDATE orders SET note = 'late'"))
    await refused("RF001", first.fetchval("SELECT $1::int", 1))
    await pools()
    await plain.execute("UPDATE orders SET note = 'second'")
    for connection in (plain, first):
        await connection.close()
    print("done")


asyncio.run(main())
