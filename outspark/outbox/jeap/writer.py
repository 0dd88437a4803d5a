"""From messages to the one statement that writes them, and to events once they have ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from outspark.contracts.jeap import enqueue
from outspark.contracts.jeap.trace import Form, TraceColumns, columns
from outspark.database.names import TableName
from outspark.errors import SettingsError
from outspark.event import Event
from outspark.observability import trace_context
from outspark.outbox.jeap.new_message import NewMessage, check
from outspark.outbox.jeap.sender import Sender
from outspark.outbox.jeap.statements import Statement, Step


@dataclass(frozen=True, slots=True)
class PreparedInsert:
    """Messages that were checked, and the step that writes them."""

    step: Step
    rows: Sequence[enqueue.Row]
    trace: TraceColumns
    form: Form

    def events(self, answers: Iterable[Any]) -> list[Event]:
        """From what the step answered, in the order in which the messages were given."""
        return enqueue.events((tuple(row) for row in answers), self.rows, self.trace, self.form)


class Writer:
    """Writes for one outbox; `sender` is its way out."""

    def __init__(self, table: TableName, cluster: str | None, form: Form, sender: Sender) -> None:
        self.sender = sender
        self._cluster, self._form = cluster, form
        self._statement = Statement.compose(enqueue.insert_sql, table)

    def write(self, messages: Sequence[NewMessage], *, immediate: bool) -> PreparedInsert:
        """EventInvalid when one of them cannot be sent as it is."""
        if immediate and not self.sender.can_send:
            raise SettingsError(
                "the outbox has no destination to send to at once: give it one, or leave messages to the relay with "
                "send_scheduled"
            )
        rows = [check(message, self._cluster) for message in messages]
        trace = columns(trace_context.current().get("traceparent"))
        seconds = self.sender.longest * len(rows) if immediate else None
        return PreparedInsert(
            Step(self._statement, enqueue.insert_params(rows, trace, seconds)), rows, trace, self._form
        )
