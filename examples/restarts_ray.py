"""examples/restarts.py on a Ray cluster: Ray Train starts a rank on each node, and all again when a node is lost.

    ray start --head --port 6379               # on the first host
    ray start --address HEAD:6379              # on every other host, and on one that replaces a lost one
    python examples/restarts_ray.py --ranks 3 --checkpoint /shared/run

After a failure Ray Train waits until the cluster has enough nodes again, then starts new workers; they continue from
the last complete checkpoint, which must be in a folder that every node sees. The driver's GRADWIRE_* variables and the
interface of gloo are passed on to the workers.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an example should not send usage statistics

import ray
import ray.train
import ray.train.torch

from restarts import arguments, train

PASSED_ON = ("GRADWIRE_", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")


def train_loop(settings: dict[str, Any]) -> None:
    train(argparse.Namespace(**settings))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=3, help="one on each node")
    parser.add_argument("--max-restarts", type=int, default=3)
    options = parser.parse_args()

    settings = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    ray.init(address="auto", runtime_env={"env_vars": settings})
    options.checkpoint = options.checkpoint.resolve()
    trainer = ray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config=vars(options),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=options.ranks, placement_strategy="STRICT_SPREAD"),
        run_config=ray.train.RunConfig(
            storage_path=str(options.checkpoint / "ray"),
            failure_config=ray.train.FailureConfig(max_failures=options.max_restarts),
        ),
    )
    trainer.fit()  # raises an error after the last restart that is allowed
    print(f"{options.ranks} ranks have trained {options.steps} steps")
    ray.shutdown()


if __name__ == "__main__":
    main()
