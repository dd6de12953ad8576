#!/bin/bash

# Parameters
#SBATCH --comment='campaign=PROJECT/results/small/plan/leases/1x1-local.steps.b1-fp32-bc786b77.c1.json results=PROJECT/results configuration=1x1-local python=PYTHON token=TOKEN'
#SBATCH --error=PROJECT/results/small/slurm/jobs/TOKEN/%j_0_log.err
#SBATCH --exclusive
#SBATCH --gres=gpu:1
#SBATCH --job-name=small/1x1-local
#SBATCH --mem=0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=PROJECT/results/small/slurm/jobs/TOKEN/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=B:USR2@60
#SBATCH --time=40

# command
export SUBMITIT_EXECUTOR=slurm
exec PYTHON -u -m submitit.core._submit PROJECT/results/small/slurm/jobs/TOKEN
