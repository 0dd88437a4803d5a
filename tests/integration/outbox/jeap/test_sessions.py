"""Sending with SQLAlchemy's sessions: what happens at which end of a transaction."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outspark.errors import EventInvalid, SettingsError, TransactionRequired
from outspark.outbox.jeap import NewMessage
from tests.integration.outbox.jeap.harness import TABLE, Harness, bodies, message, messages

DIE_AT_COMMIT = f"""
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER die AFTER INSERT ON {TABLE} DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION die()"""

REFUSE_AT_COMMIT = f"""
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON {TABLE} DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION refuse()"""

REFUSE_MARK = f"""
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
CREATE TRIGGER refuse BEFORE UPDATE OF sent_immediately ON {TABLE}
  FOR EACH ROW EXECUTE FUNCTION refuse()"""


def test_a_message_is_a_row_as_jeap_writes_it(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox(cluster="main")
    id = uuid4()
    sent = NewMessage("orders", b"\x00\xff", "OrderCreated", b"\xfe", "1.2.0", id, "order 7 created")
    with Session(engine) as session, session.begin():
        [number] = outbox.send_scheduled(session, sent)

    row = harness.row()
    assert (row.id, row.message, row.key, row.cluster_name) == (number, b"\x00\xff", b"\xfe", "main")
    assert (row.topic, row.message_id, row.message_idempotence_id) == ("orders", str(id), "order 7 created")
    assert (row.message_type_name, row.message_type_version) == ("OrderCreated", "1.2.0")
    assert (row.send_immediately, row.schedule_after, row.resend) == (False, None, False)
    assert row.waits
    assert (row.fail_reason, row.trace_id_high, row.trace_id, row.span_id, row.sampled) == (None,) * 5
    assert harness.ready() == [number]


def test_a_committed_message_is_sent_and_marked(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    with Session(engine) as session:
        with session.begin():
            outbox.send(session, message())
            assert harness.rows() == []
        row = harness.row()

    assert row.send_immediately
    assert row.sent_immediately is not None
    assert row.created < row.sent_immediately
    assert (row.sent_scheduled, row.failed, row.resend) == (None, None, False)
    assert harness.posted("immediate") == {"committed": 1}
    assert harness.transmitted() == 1


def test_one_statement_writes_all_messages_and_two_more_send_them(
    harness: Harness, engine: sa.Engine
) -> None:
    outbox = harness.outbox()
    statements: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement.splitlines()[1].split()[0])

    with Session(engine) as session, session.begin():
        event.listen(engine, "before_cursor_execute", note)
        ids = outbox.send(session, *messages(100))
        session.execute(sa.text("--\nSELECT 1"))

    assert statements == ["INSERT", "SELECT", "UPDATE", "UPDATE"]
    assert ids == sorted(ids) == [row.id for row in harness.rows()]
    assert bodies(harness.rows()) == [b"%d" % number for number in range(100)]
    assert harness.transmitted() == 100


def test_the_relay_waits_for_the_longest_send_of_every_message(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    with Session(engine) as session, session.begin():
        outbox.send(session, message())
        outbox.send(session, *messages(2))
        outbox.send_scheduled(session, message(b"scheduled"))

    *sent, scheduled = harness.rows()
    assert len({row.schedule_after for row in sent}) == 1
    assert all(60 <= row.hold < 65 for row in sent)
    assert scheduled.schedule_after is None
    assert harness.ready() == [scheduled.id]
    assert harness.posted("immediate") == {"committed": 3}
    assert harness.posted("scheduled") == {"committed": 1}


def test_two_outboxes_in_one_transaction_are_held_together(harness: Harness, engine: sa.Engine) -> None:
    one, two = harness.outbox(), harness.outbox(cluster="second", clusters={"second": {"type": "null"}})
    with Session(engine) as session, session.begin():
        one.send(session, *messages(2))
        two.send(session, message())

    assert all(60 <= row.hold < 65 and row.sent_immediately for row in harness.rows())
    assert [row.cluster_name for row in harness.rows()] == [None, None, "second"]


@pytest.mark.parametrize("how", ["rollback", "close", "error"])
def test_what_is_rolled_back_is_never_sent(harness: Harness, engine: sa.Engine, how: str) -> None:
    outbox = harness.outbox()
    session = Session(engine)
    session.begin()
    outbox.send(session, message())
    outbox.send_scheduled(session, message())
    if how == "error":
        with pytest.raises(sa.exc.ProgrammingError):
            session.execute(sa.text("SELECT nothing"))
    if how == "close":
        session.close()
    else:
        session.rollback()
    # The session's next transaction has nothing of it.
    with session.begin():
        outbox.send(session, message(b"kept"))
    session.close()

    assert bodies(harness.rows()) == [b"kept"]
    assert harness.posted("immediate") == {"committed": 1, "rolled_back": 1}
    assert harness.posted("scheduled") == {"rolled_back": 1}
    assert harness.transmitted() == 1


def test_a_savepoint_that_is_rolled_back_takes_its_messages_with_it(
    harness: Harness, engine: sa.Engine
) -> None:
    outbox = harness.outbox()
    with Session(engine) as session, session.begin():
        outbox.send(session, message(b"before"))
        savepoint = session.begin_nested()
        outbox.send(session, message(b"within"))
        savepoint.rollback()
        outbox.send(session, message(b"after"))

    assert bodies(harness.rows()) == [b"before", b"after"]
    assert all(row.sent_immediately for row in harness.rows())
    assert harness.posted("immediate") == {"committed": 2, "rolled_back": 1}
    assert harness.transmitted() == 2


def test_a_savepoint_that_is_released_sends_nothing_yet(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    with Session(engine) as session, session.begin():
        with session.begin_nested():
            with session.begin_nested():
                outbox.send(session, message())
        assert harness.transmitted() == 0
        assert harness.posted("immediate") == {}

    assert harness.row().sent_immediately
    assert harness.transmitted() == 1
    assert harness.posted("immediate") == {"committed": 1}


def test_a_commit_with_a_savepoint_open_leaves_the_message_to_the_relay(
    harness: Harness, engine: sa.Engine
) -> None:
    """Which of them it has cannot be told there, but they are never forgotten."""
    outbox = harness.outbox()
    with Session(engine) as session:
        outer = session.begin()
        session.begin_nested()
        outbox.send(session, message())
        outer.commit()

    assert harness.row().waits
    assert 20 <= harness.row().hold < 21


def test_a_message_sent_by_a_flush_inside_the_commit_is_left_to_the_relay(
    harness: Harness, engine: sa.Engine
) -> None:
    outbox = harness.outbox()
    base = sa.orm.declarative_base()
    table = type("Thing", (base,), {"__tablename__": "thing", "id": sa.Column(sa.Integer, primary_key=True)})
    base.metadata.create_all(engine)
    with Session(engine) as session:
        event.listen(session, "after_flush", lambda session, _: outbox.send(session, message()))
        with session.begin():
            session.add(table(id=1))

    assert harness.row().waits
    assert 20 <= harness.row().hold < 21
    assert harness.posted("immediate") == {"committed": 1}


def test_a_session_that_joined_a_transaction_leaves_its_messages_to_the_relay(
    harness: Harness, engine: sa.Engine
) -> None:
    outbox = harness.outbox()
    with engine.begin() as conn:
        with Session(conn) as session, session.begin():
            outbox.send(session, message())
        assert harness.rows() == []

    assert harness.row().waits
    assert 20 <= harness.row().hold < 21
    assert harness.posted("immediate") == {"unknown": 1}
    assert harness.transmitted() == 0


def test_a_session_on_a_connection_of_its_own_sends(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    with engine.connect() as conn:
        with Session(conn) as session, session.begin():
            outbox.send(session, message())
        assert not conn.in_transaction()

    assert harness.row().sent_immediately


def test_a_scoped_session(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    session = scoped_session(sessionmaker(engine))
    with session.begin():
        outbox.send(session, message())
    session.remove()

    assert harness.row().sent_immediately


def test_a_commit_that_the_database_refuses_is_a_rollback(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    harness.database.connect().execute(REFUSE_AT_COMMIT)
    with Session(engine) as session:
        with pytest.raises(sa.exc.DBAPIError), session.begin():
            outbox.send(session, message())

    assert harness.rows() == []
    assert harness.posted("immediate") == {"rolled_back": 1}
    assert harness.transmitted() == 0


def test_nobody_knows_about_a_commit_in_which_the_connection_is_lost(
    harness: Harness, engine: sa.Engine
) -> None:
    outbox = harness.outbox()
    harness.database.connect().execute(DIE_AT_COMMIT)
    with Session(engine) as session:
        with pytest.raises(sa.exc.DBAPIError), session.begin():
            outbox.send(session, message())

    assert harness.posted("immediate") == {"unknown": 1}
    assert harness.transmitted() == 0


def test_nothing_is_raised_when_a_message_cannot_be_marked(
    harness: Harness, engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = harness.outbox()
    harness.database.connect().execute(REFUSE_MARK)
    with caplog.at_level(logging.ERROR), Session(engine) as session, session.begin():
        outbox.send(session, message())

    assert harness.row().waits
    assert "left to the relay" in caplog.text


def test_what_the_relay_was_faster_with_stays_as_it_is(
    harness: Harness, engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = harness.outbox()
    conn = harness.database.connect()
    # As a relay that takes the message between its commit and its mark.
    conn.execute(
        f"CREATE FUNCTION faster() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        f"CREATE TRIGGER faster BEFORE UPDATE OF sent_immediately ON {TABLE} "
        "FOR EACH ROW EXECUTE FUNCTION faster()"
    )
    with caplog.at_level(logging.INFO), Session(engine) as session, session.begin():
        outbox.send(session, message())

    assert harness.row().waits
    assert "the relay was faster" in caplog.text


def test_nothing_is_sent_outside_a_transaction(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    with Session(engine) as session:
        with pytest.raises(TransactionRequired, match=r"send needs a transaction.*session\.begin"):
            outbox.send(session, message())
        with pytest.raises(TransactionRequired, match="send_scheduled needs a transaction"):
            outbox.send_scheduled(session, message())
    with engine.connect() as conn:
        with pytest.raises(TransactionRequired, match="send_scheduled needs a transaction"):
            outbox.send_scheduled(conn, message())
    assert harness.rows() == []


def test_a_bare_connection_takes_only_scheduled_messages(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    with engine.begin() as conn:
        with pytest.raises(TransactionRequired, match="a SQLAlchemy Session, or leave"):
            outbox.send(conn, message())  # type: ignore[arg-type]
        outbox.send_scheduled(conn, message())

    assert harness.ready() == [harness.row().id]
    assert harness.posted("scheduled") == {"unknown": 1}


def test_an_engine_that_commits_by_itself_is_refused(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    own = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(own) as session, session.begin():
        with pytest.raises(TransactionRequired, match="commits each statement by itself"):
            outbox.send(session, message())
    assert harness.rows() == []


def test_no_messages_at_all(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    with Session(engine) as session, session.begin():
        assert outbox.send(session) == []
        assert outbox.send_scheduled(session) == []
    assert harness.rows() == []
    assert harness.posted("immediate") == {}


def test_without_a_destination_messages_are_the_relays(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox(destination=None)
    with Session(engine) as session, session.begin():
        with pytest.raises(SettingsError, match="no destination"):
            outbox.send(session, message())
        outbox.send_scheduled(session, message())
    assert harness.row().waits


def test_a_message_that_cannot_be_written_spoils_nothing(harness: Harness, engine: sa.Engine) -> None:
    outbox = harness.outbox()
    with Session(engine) as session, session.begin():
        with pytest.raises(EventInvalid):
            outbox.send(session, message(), message(topic=""))
        outbox.send(session, message(b"good"))
    assert bodies(harness.rows()) == [b"good"]


def test_a_handle_of_another_kind(harness: Harness) -> None:
    with pytest.raises(TypeError, match=r"send cannot write through builtins\.str"):
        harness.outbox().send("conn", message())  # type: ignore[arg-type]
