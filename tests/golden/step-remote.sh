# srun --nodes=2 --nodelist=host1,host2 --ntasks=6 --ntasks-per-node=3 --overlap --immediate=10 --kill-on-bad-exit=0 --wait=0 --export=ALL --input=none --cpus-per-task=8 --mem=0M --job-name=cell.1 --output=/shared/log --open-mode=append /bin/sh /shared/results/work/L1R2/runs/cell.1/rank.sh python -m campaign.workloads.trainer.rank
#!/bin/sh
# Generated for one run: one rank per task.
case $SLURMD_NODENAME in
host1) first=0 ranks=3 ;;
host2) first=3 ranks=3 ;;
*) echo "$SLURMD_NODENAME is not a host of this run" >&2; exit 125 ;;
esac
rank=$((first + SLURM_LOCALID))
case $rank in
1) set -- lend 1 0.25 -- "$@" ;;
2) set -- lend 1 0.25 -- "$@" ;;
4) set -- lend 1 0.25 -- "$@" ;;
5) set -- lend 1 0.25 -- "$@" ;;
esac
look() {
  read -r boot idle </proc/uptime
  group=$(sed -n 's/^0:://p' /proc/self/cgroup)
  kills=$(sed -n 's/^oom_kill //p' "/sys/fs/cgroup$group/memory.events" /proc/vmstat 2>/dev/null | head -n 1)
  echo "$1 $(date +%s.%N) $boot ${kills:-0}" >>"$here"
}
here=/shared/results/work/L1R2/runs/cell.1/rank.$rank
echo "started $SLURM_JOB_ID.$SLURM_STEP_ID $SLURMD_NODENAME" >"$here"
if ! command -v "$1" >/dev/null; then
  echo missing >>"$here"
  exit 127
fi
look before
(
export RANK=$rank
export LOCAL_RANK=$SLURM_LOCALID
export LOCAL_WORLD_SIZE=$ranks
export CAMPAIGN_HOST=$SLURMD_NODENAME
export CAMPAIGN_HOST_RANK=$SLURM_LOCALID
export WORLD_SIZE=6
export MASTER_ADDR=host1
export MASTER_PORT=29500
case $rank in
0) export CUDA_VISIBLE_DEVICES=7 GIVEN='it'"'"'s' ;;
3) export CUDA_VISIBLE_DEVICES=7 GIVEN='it'"'"'s' ;;
esac
export CAMPAIGN_RUN=0123/L1R2/cell.1 CAMPAIGN_RUN_RANK='0123/L1R2/cell.1#'$rank#
exec "$@"
)
code=$?
look after
echo "ended $code" >>"$here"
exit $code
