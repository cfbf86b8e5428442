"""Entry point `torch.backends`: registers the backend's name when torch is imported, and loads nothing.

Nothing else of torch changes. In particular the list of backends that torch keeps for out-of-tree ones stays as it was:
where that list is not empty, torch gives a group of several devices ("cpu:gloo,cuda:nccl") no default backend, and such
a group is called "undefined" and has no sequence numbers.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

NAME = "gradwire"


def register() -> None:
    """Let `init_process_group("gradwire")` find `create`."""
    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
    plugins = getattr(dist.Backend, "_plugins", None)
    if isinstance(plugins, dict) and NAME.upper() in plugins:
        plugin = plugins.pop(NAME.upper())
        dist.Backend._plugins = _Unlisted(plugins, plugin)


def create(options: Any, backend_options: object = None) -> Any:
    """Loads the group's module with the first group: importing torch takes no longer than without gradwire."""
    from gradwire.backend.process_group import create as create_group

    return create_group(options, backend_options)


class _Unlisted(dict[str, Any]):
    """Torch's out-of-tree backends. gradwire is found by name but is not listed."""

    def __init__(self, listed: dict[str, Any], plugin: Any) -> None:
        super().__init__(listed)
        self._plugin = plugin

    def __contains__(self, name: object) -> bool:
        return name == NAME.upper() or super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        if name == NAME.upper():
            return self._plugin
        raise KeyError(name)
