"""What torch calls when it is imported (entry point `torch.backends`): makes the name known and loads nothing."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

NAME = "gradwire"


def register() -> None:
    """Let `init_process_group("gradwire")` find `create`."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])


def create(options: Any, backend_options: object = None) -> Any:
    """The group itself is loaded when the first one is made: importing torch stays as quick as it was."""
    from gradwire.backend import create as create_group

    return create_group(options, backend_options)
