"""psycopg 3 through the proxy: port, an older ticket, a newer one."""

import sys

import psycopg

port, old, new = sys.argv[1:]
place = f"host=127.0.0.1 port={port} user=app dbname=app"


def refused(code, work):
    try:
        work()
    except psycopg.Error as error:
        assert error.sqlstate == code, (error.sqlstate, error)
        return error
    raise SystemExit(f"not refused: {code}")


def plain():
    with psycopg.connect(place) as connection:
        assert connection.execute("SELECT note FROM orders").fetchall() == [("first",)]
        error = refused("RF002", lambda: connection.execute("DELETE FROM orders"))
        assert '"lock":"app"' in error.diag.message_detail, error.diag.message_detail
        connection.rollback()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def features(connection):
    """What a driver does, with a ticket in its options."""
    with connection.cursor() as cursor:
        for round in range(8):
            # From the fifth time on it prepares the statement.
            cursor.execute("SELECT %s::int + %s::int", (round, 1))
            assert cursor.fetchone() == (round + 1,)
        cursor.executemany("INSERT INTO plain VALUES (%s, %s)", [(n, str(n)) for n in range(100)])
        with cursor.copy("COPY plain FROM STDIN") as copy:
            for n in range(100, 200):
                copy.write_row((n, "copied"))
        cursor.execute("SELECT count(*) FROM plain")
        assert cursor.fetchone() == (200,)
        with cursor.copy("COPY plain TO STDOUT (FORMAT binary)") as copy:
            assert sum(len(part) for part in copy) > 1000
    connection.commit()
    with connection.cursor("named") as cursor:
        cursor.itersize = 30
        cursor.execute("SELECT id FROM plain ORDER BY id")
        assert [row[0] for row in cursor] == list(range(200))
    connection.commit()
    with connection.pipeline():
        cursors = [connection.execute("SELECT %s::int", (n,)) for n in range(50)]
    assert [cursor.fetchone()[0] for cursor in cursors] == list(range(50))
    connection.commit()
    with connection.transaction():
        connection.execute("UPDATE orders SET note = 'first again'")
        try:
            with connection.transaction():
                connection.execute("UPDATE orders SET note = 'never'")
                raise psycopg.Rollback()
        except psycopg.Rollback:
            pass
    assert connection.execute("SELECT note FROM orders").fetchone() == ("first again",)
    connection.execute("LISTEN news")
    connection.execute("NOTIFY news, 'hello'")
    connection.commit()
    notified = next(connection.notifies(timeout=10, stop_after=1))
    assert notified.payload == "hello"


plain()
first = psycopg.connect(f"{place} options='-c ringfence.token={old}'")
features(first)
second = psycopg.connect(place, autocommit=True)
second.execute("SELECT set_config('ringfence.token', %s, false)", (new,))
assert second.execute("SHOW ringfence.token").fetchone() == ("app=2",)
assert second.execute("SELECT note FROM orders").fetchone() == ("first again",)
refused("RF001", lambda: first.execute("UPDATE orders SET note = 'late'"))
first.rollback()
refused("RF001", lambda: first.execute("SELECT 1"))
first.rollback()
second.execute("UPDATE orders SET note = 'second'")
first.close()

# A statement is cancelled by whoever runs it.
import threading

timer = threading.Timer(0.3, second.cancel)
timer.start()
refused("57014", lambda: second.execute("SELECT pg_sleep(60)"))
timer.join()
assert second.execute("SELECT 1").fetchone() == (1,)
print("done")
