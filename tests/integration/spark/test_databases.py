"""The driver's connections: one that died meanwhile must not keep the lanes from hearing the word to stop."""

from __future__ import annotations

from outspark.database.session import connect
from outspark.hosting import control
from outspark.spark.databases import Databases
from tests.databases import Database
from tests.waiting import wait_for

NAME = "outspark driver under test"


def test_lanes_are_told_to_stop_after_the_database_has_restarted(database: Database) -> None:
    databases = Databases(NAME)
    lane = connect(database.url, "lane")
    control.listen(lane, "run")
    with databases.use(database.url) as conn:
        conn.execute("SELECT 1")
    gone = database.connect().execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s", [NAME]
    )
    assert gone.fetchall() == [(True,)]

    assert databases.send_stop({"shop": database.url}, "run")
    assert [notify.payload for notify in lane.notifies(timeout=5, stop_after=1)] == [control.STOP]
    databases.close()
    lane.close()


def test_a_query_that_hangs_at_the_close_leaves_no_session(database: Database) -> None:
    databases = Databases(NAME, timeout=0.1)
    watcher = database.connect()

    def sessions() -> int:
        row = watcher.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [NAME]
        ).fetchone()
        return int(row[0]) if row is not None else 0

    assert databases.query({"shop": database.url}, "SELECT pg_sleep(1)", {}) == []
    assert sessions() == 1
    databases.close()

    wait_for(lambda: sessions() == 0, timeout=20, what="the end of the session")
