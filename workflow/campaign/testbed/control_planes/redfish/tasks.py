"""Asynchronous operations of the emulated service: done after some looks at its monitor, forgotten once it was told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from campaign.testbed.control_planes.redfish.composition import Refused
from campaign.testbed.control_planes.redfish.documents import ROOT, Document, collection, ref
from campaign.testbed.control_planes.redfish.responses import HEADERS
from campaign.testbed.control_planes.redfish.variant import Variant
from campaign.testbed.control_planes.server import Reply

TASK_SERVICE = f"{ROOT}/TaskService"
TASKS = f"{TASK_SERVICE}/Tasks"
MONITORS = f"{TASK_SERVICE}/TaskMonitors"


@dataclass
class Task:
    """result: None while it runs."""

    id: str
    looks_left: int
    change: Callable[[], Reply]
    result: Reply | None = None


class Tasks:
    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._tasks: dict[str, Task] = {}
        self._number = 0

    def begin(self, change: Callable[[], Reply]) -> Reply:
        self._number += 1
        task = Task(str(self._number), self._variant.task_polls, change)
        self._tasks[task.id] = task
        return self._accepted(task)

    def _accepted(self, task: Task) -> Reply:
        headers = {"Location": f"{MONITORS}/{task.id}", "Retry-After": str(self._variant.sleep_s)}
        return Reply(202, self.find(f"{TASKS}/{task.id}"), HEADERS | headers)

    def look(self, path: str) -> Reply:
        """What the operation would have answered, once."""
        task = self._tasks.get(path.rpartition("/")[2])
        if task is None:
            raise Refused(404, "Base.1.19.ResourceMissingAtURI", f"no {path}", (path,))
        task.looks_left -= 1
        if task.looks_left > 0:
            return self._accepted(task)
        del self._tasks[task.id]
        return task.change()

    def find(self, path: str) -> Document | None:
        if path == TASK_SERVICE:
            return {
                "@odata.id": path,
                "@odata.type": "#TaskService.v1_2_1.TaskService",
                "Id": "TaskService",
                "Name": "Task Service",
                "ServiceEnabled": True,
                "Tasks": ref(TASKS),
            }
        if path == TASKS:
            return collection(path, "Task", "Tasks", list(self._tasks))
        place, _, name = path.rpartition("/")
        if place == TASKS and name in self._tasks:
            return {
                "@odata.id": path,
                "@odata.type": "#Task.v1_7_4.Task",
                "Id": name,
                "Name": f"Task {name}",
                "TaskState": "Running",
                "TaskStatus": "OK",
                "TaskMonitor": f"{MONITORS}/{name}",
                "Messages": [],
            }
        return None
