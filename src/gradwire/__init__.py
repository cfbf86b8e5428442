"""gradwire: data-parallel PyTorch training that adapts to the network it runs on.

Importing this package is fast: torch is imported when something that needs it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gradwire.config import Config
    from gradwire.errors import ConfigError, GradwireError, IntegrityError, LinkError
    from gradwire.integrations.comm_hook import HookState, comm_hook
    from gradwire.integrations.ddp import attach
    from gradwire.integrations.fsdp import attach_fsdp
    from gradwire.integrations.handle import Handle
    from gradwire.integrations.rejoin import init_process_group
    from gradwire.integrations.sync_weights import WeightSync, sync_weights
    from gradwire.level import Level

__all__ = [
    "Config",
    "ConfigError",
    "GradwireError",
    "Handle",
    "HookState",
    "IntegrityError",
    "Level",
    "LinkError",
    "WeightSync",
    "attach",
    "attach_fsdp",
    "comm_hook",
    "init_process_group",
    "sync_weights",
]

_HOME = {
    "attach": "gradwire.integrations.ddp",
    "attach_fsdp": "gradwire.integrations.fsdp",
    "comm_hook": "gradwire.integrations.comm_hook",
    "HookState": "gradwire.integrations.comm_hook",
    "init_process_group": "gradwire.integrations.rejoin",
    "Handle": "gradwire.integrations.handle",
    "WeightSync": "gradwire.integrations.sync_weights",
    "sync_weights": "gradwire.integrations.sync_weights",
    "Config": "gradwire.config",
    "Level": "gradwire.level",
    "ConfigError": "gradwire.errors",
    "GradwireError": "gradwire.errors",
    "IntegrityError": "gradwire.errors",
    "LinkError": "gradwire.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradwire' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
