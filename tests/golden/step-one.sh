# srun --nodes=1 --nodelist=host1 --ntasks=1 --ntasks-per-node=1 --overlap --immediate=10 --kill-on-bad-exit=0 --wait=0 --export=ALL --input=none --gres=gpu:2 --mem=0M --job-name=cell.1 --output=/shared/results/logs/2x2/cell.1.log --open-mode=append /bin/sh /shared/results/work/2x2/runs/cell.1/rank.sh mpirun './a program' 'it'"'"'s'
#!/bin/sh
# Generated for one run: one program for all ranks.
rank=0
look() {
  read -r boot idle </proc/uptime
  group=$(sed -n 's/^0:://p' /proc/self/cgroup)
  kills=$(sed -n 's/^oom_kill //p' "/sys/fs/cgroup$group/memory.events" /proc/vmstat 2>/dev/null | head -n 1)
  echo "$1 $(date +%s.%N) $boot ${kills:-0}" >>"$here"
}
here=/shared/results/work/2x2/runs/cell.1/rank.$rank
echo "started $SLURM_JOB_ID.$SLURM_STEP_ID $SLURMD_NODENAME" >"$here"
if ! command -v mpirun >/dev/null; then
  echo missing >>"$here"
  exit 127
fi
look before
(
unset SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEPID SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE SLURM_CPU_BIND
unset SLURM_STEP_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_DISTRIBUTION
export CAMPAIGN_RANKS=4
export CAMPAIGN_HOSTS=host1,host2
export SLURM_NNODES=2
export SLURM_JOB_NUM_NODES=2
export SLURM_NODELIST=host1,host2
export SLURM_JOB_NODELIST=host1,host2
export SLURM_NTASKS=4
export SLURM_NPROCS=4
export SLURM_NTASKS_PER_NODE=2
export SLURM_TASKS_PER_NODE='2(x2)'
export CAMPAIGN_RUN=0123/2x2/cell.1 CAMPAIGN_RUN_RANK='0123/2x2/cell.1#'$rank#
exec "$@"
)
code=$?
look after
echo "ended $code" >>"$here"
exit $code
