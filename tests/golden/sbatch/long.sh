#!/bin/bash

# Parameters
#SBATCH --comment='campaign=PROJECT/results/small/plan/leases/2x3-hybrid1.c1.json results=PROJECT/results configuration=2x3-hybrid1 python=PYTHON token=TOKEN'
#SBATCH --error=PROJECT/results/small/slurm/jobs/TOKEN/%j_0_log.err
#SBATCH --exclusive
#SBATCH --gres=gpu:4
#SBATCH --job-name=small/2x3-hybrid1
#SBATCH --mem=0
#SBATCH --nodelist=host1,host2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=3
#SBATCH --open-mode=append
#SBATCH --output=PROJECT/results/small/slurm/jobs/TOKEN/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=B:USR2@60
#SBATCH --time=1440

# command
export SUBMITIT_EXECUTOR=slurm
exec PYTHON -u -m submitit.core._submit PROJECT/results/small/slurm/jobs/TOKEN
