# srun --nodes=2 --nodelist=host1,host2 --ntasks=4 --ntasks-per-node=2 --overlap --immediate=10 --kill-on-bad-exit=0 --wait=0 --export=ALL --input=none --gres=gpu:2 --mem=0M --job-name=cell.1 --output=/shared/results/logs/2x2/cell.1.log --open-mode=append /bin/sh /shared/results/work/2x2/runs/cell.1/rank.sh python -m campaign.workloads.trainer.rank
#!/bin/sh
# Generated for one run: one rank per task.
case $SLURMD_NODENAME in
host1) first=0 ranks=2 ;;
host2) first=2 ranks=2 ;;
*) echo "$SLURMD_NODENAME is not a host of this run" >&2; exit 125 ;;
esac
rank=$((first + SLURM_LOCALID))
look() {
  read -r boot idle </proc/uptime
  group=$(sed -n 's/^0:://p' /proc/self/cgroup)
  kills=$(sed -n 's/^oom_kill //p' "/sys/fs/cgroup$group/memory.events" /proc/vmstat 2>/dev/null | head -n 1)
  echo "$1 $(date +%s.%N) $boot ${kills:-0}" >>"$here"
}
here=/shared/results/work/2x2/runs/cell.1/rank.$rank
echo "started $SLURM_JOB_ID.$SLURM_STEP_ID $SLURMD_NODENAME" >"$here"
if ! command -v python >/dev/null; then
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
export WORLD_SIZE=4
export MASTER_ADDR=198.18.1.1
export MASTER_PORT=29500
export GLOO_SOCKET_IFNAME=eth0
export CAMPAIGN_RUN=0123/2x2/cell.1 CAMPAIGN_RUN_RANK='0123/2x2/cell.1#'$rank#
case $rank in
1) set -- nsenter --net=/proc/1/fd/9 -- "$@" ;;
3) set -- nsenter --net=/proc/1/fd/12 -- "$@" ;;
esac
! command -v python >/dev/null || set -- python -m campaign.common.processes.subreaper "$here" "$@"
exec "$@"
)
code=$?
for round in 1 2 3 4 5 6 7 8 9; do
  left=$(grep -lsF -- 'CAMPAIGN_RUN_RANK=0123/2x2/cell.1#'"$rank#" /proc/[0-9]*/environ)
  test -n "$left" || break
  for file in $left; do
    pid=${file#/proc/}
    kill -9 "${pid%/environ}" 2>/dev/null
  done
done
look after
echo "ended $code" >>"$here"
exit $code
