#!/bin/bash
# Runs its arguments as one rank of a job: sets from srun's variables those that torchrun would set.
#
#     srun --nodes 3 --ntasks-per-node 1 examples/slurm_rank.sh python train.py
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
MASTER_ADDR=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29500}
exec "$@"
