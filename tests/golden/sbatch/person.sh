#!/bin/bash

# Parameters
#SBATCH --account=mine
#SBATCH --comment='campaign=PROJECT/results/small/plan/leases/2x3-hybrid1.c1.json results=PROJECT/results configuration=2x3-hybrid1 python=PYTHON token=TOKEN'
#SBATCH --cpus-per-task=4
#SBATCH --error=PROJECT/results/small/slurm/jobs/TOKEN/%j_0_log.err
#SBATCH --gres=gpu:4
#SBATCH --job-name=small/2x3-hybrid1
#SBATCH --licenses='a b'
#SBATCH --mem=12800M
#SBATCH --nice=0
#SBATCH --nodelist=host1,host2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=3
#SBATCH --open-mode=append
#SBATCH --output=PROJECT/results/small/slurm/jobs/TOKEN/%j_0_log.out
#SBATCH --partition=gpu
#SBATCH --requeue
#SBATCH --signal=B:USR2@60
#SBATCH --time=30

# command
export SUBMITIT_EXECUTOR=slurm
exec PYTHON -u -m submitit.core._submit PROJECT/results/small/slurm/jobs/TOKEN
