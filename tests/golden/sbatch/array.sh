#!/bin/bash

# Parameters
#SBATCH --array=0-1%2
#SBATCH --comment='campaign=PROJECT/results/small/plan/leases/1x2-local.steps.b1-fp32-5995a9cd.c1.json results=PROJECT/results configuration=1x2-local python=PYTHON token=TOKEN'
#SBATCH --error=PROJECT/results/small/slurm/batches/TOKEN/%A_%a_0_log.err
#SBATCH --exclusive
#SBATCH --gres=gpu:2
#SBATCH --job-name=small/1x2-local
#SBATCH --mem=0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output=PROJECT/results/small/slurm/batches/TOKEN/%A_%a_0_log.out
#SBATCH --requeue
#SBATCH --signal=B:USR2@60
#SBATCH --time=40

# command
export SUBMITIT_EXECUTOR=slurm
exec PYTHON -u -m submitit.core._submit PROJECT/results/small/slurm/batches/TOKEN
