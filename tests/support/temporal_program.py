"""A Temporal workflow, as a user's program has it. Its activity appends its id and arguments to a file."""

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.service import ConnectConfig

with workflow.unsafe.imports_passed_through():
    from tests.support.task_programs import append


@activity.defn
def write_receipt(task_id: str, invoice: str, amount: int) -> None:
    append(task_id, invoice, amount)


@workflow.defn
class SendReceipt:
    @workflow.run
    async def run(self, invoice: str, amount: int) -> None:
        arguments = [workflow.info().workflow_id, invoice, amount]
        await workflow.execute_local_activity(
            write_receipt, args=arguments, start_to_close_timeout=timedelta(seconds=30)
        )


def make_temporal(address: str) -> tuple[ConnectConfig, Any]:
    return ConnectConfig(target_host=address), SendReceipt.run
