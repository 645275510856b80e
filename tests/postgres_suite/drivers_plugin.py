"""A plugin of pytest for drivers' own tests: says what passed, and gives drivers the ticket.

RINGFENCE_PASSED names the file that takes a line for each test that passed. RINGFENCE_TICKET is the
ticket, for the drivers that read no PGOPTIONS: it goes where an application would put it, into the
parameters of the start-up.
"""

import os

TICKET = os.environ.get("RINGFENCE_TICKET")
PASSED = os.environ["RINGFENCE_PASSED"]

open(PASSED, "w").close()
outcomes = {}


def pytest_runtest_logreport(report):
    """Passed is what passed with its set-up and tear-down."""
    good = outcomes.get(report.nodeid, True) and report.passed
    outcomes[report.nodeid] = good
    if report.when == "teardown" and good:
        with open(PASSED, "a", encoding="utf-8") as passed:
            passed.write(report.nodeid.encode("unicode_escape").decode() + "\n")


def give_asyncpg_the_ticket():
    from asyncpg import connect_utils

    connect = connect_utils._connect_addr

    # Tests that put another in its place look whether it is async.
    async def with_ticket(*, params, **others):
        # Tests hand in things that only look like it.
        if isinstance(params, connect_utils._ConnectionParameters):
            settings = {"ringfence.token": TICKET, **(params.server_settings or {})}
            params = params._replace(server_settings=settings)
        return await connect(params=params, **others)

    connect_utils._connect_addr = with_ticket


def give_pg8000_the_ticket():
    from pg8000 import core

    init = core.CoreConnection.__init__

    def with_ticket(self, *args, startup_params=None, **others):
        settings = {"ringfence.token": TICKET, **(startup_params or {})}
        init(self, *args, startup_params=settings, **others)

    core.CoreConnection.__init__ = with_ticket


if TICKET:
    for give in (give_asyncpg_the_ticket, give_pg8000_the_ticket):
        try:
            give()
        except ImportError:
            pass
