"""Temporal: workflows of a task queue. Temporal starts one workflow per id, while it keeps the workflow's history."""

from datetime import timedelta
from functools import partial
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import ConnectConfig, ServiceClient

from oncehook.task_queues.adapter import Task, TaskMessage
from oncehook.task_queues.loop_client import LoopClient


class TemporalAdapter:
    """Starts workflows. The options besides `task_queue` are those of `temporalio.client.Client`."""

    def __init__(self, config: ConnectConfig, task_queue: str, options: dict[str, Any]) -> None:
        self.config = config
        self.task_queue = task_queue
        self.options = options
        self._client: LoopClient[Client] = LoopClient(self._connect, _close)

    def check(self) -> None:
        """Temporal always answers after it has stored the workflow."""

    def find(self, task: object) -> Task | None:
        if isinstance(task, str):
            return Task(task, takes_keywords=False)
        definition = getattr(task, "__temporal_workflow_definition", None)
        if definition is None or definition.name is None:
            return None
        return Task(definition.name, partial(definition.run_fn, None), takes_keywords=False)

    async def send(self, message: TaskMessage) -> None:
        client = await self._client.get()
        try:
            await client.start_workflow(
                message.name,
                args=message.args,
                id=message.key,
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                rpc_timeout=timedelta(seconds=message.seconds),
            )
        except WorkflowAlreadyStartedError:
            return

    async def close(self) -> None:
        await self._client.close()

    async def _connect(self) -> Client:
        return Client(await ServiceClient.connect(self.config), **self.options)


async def _close(client: Client) -> None:
    """The client disconnects when it is no longer used."""


def make_adapter(
    config: ConnectConfig, *, task_queue: str, namespace: str = "default", **options: Any
) -> TemporalAdapter:
    return TemporalAdapter(config, task_queue, {"namespace": namespace, **options})
