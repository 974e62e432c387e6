"""The tables: the engine's own, plus two of ours for workers with their leases and for questions to people."""

from __future__ import annotations

import sqlalchemy as sa
from dbos._schemas.system_database import SystemSchema

APPLICATION = "weakincentives"
NO_TENANT = "-"
# Where work that was started without a queue goes on; every process that runs the loop serves it.
DIRECT = ".direct"

status = SystemSchema.workflow_status
inputs = SystemSchema.workflow_input
outputs = SystemSchema.workflow_output
steps = SystemSchema.operation_outputs

ours = sa.MetaData(schema=SystemSchema.metadata_obj.schema)
workers = sa.Table(
    "wink_worker",
    ours,
    sa.Column("executor_id", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
)
questions = sa.Table(
    "wink_question",
    ours,
    sa.Column("workflow_uuid", sa.Text, primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("call_id", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("asked_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger),
    sa.Column("answer", sa.Text),
)
