"""Base group: the name methods of a process group written in Python, in the spelling of every torch version."""

# torch's stub says GroupName, a str that only type checkers know.
# mypy: disable-error-code="override"

from __future__ import annotations

import torch.distributed as dist


class BaseGroup(dist.ProcessGroup):
    """A group that knows its backend's name and its own."""

    BACKEND = ""

    def __init__(self, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._name, self._description = name, ""

    def name(self) -> str:
        return self.BACKEND

    def getBackendName(self) -> str:  # noqa: N802
        return self.BACKEND

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description
