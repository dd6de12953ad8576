# What resume, suspend and resume-fail share. Not a program: they read it with `.`.
#
# Slurm starts its programs without PATH, and ends what is left of them when they return or take too long. So each hands its
# work to a session of its own and returns at once; what became of it is in $LOG.
#
# $STATE/jobs/JOB says what was composed for a job: `owner`, `configuration`, `campaign`, `results`, `python`, a file each, and
# `hosts/HOST` for each host that is still up. The composition is released when the last of its hosts goes.

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
programs=$(dirname "$(readlink -f "$0")")
. "$programs/settings"
umask 022
mkdir -p "$STATE/jobs" "$(dirname "$LOG")"

say() { echo "$(date '+%Y-%m-%dT%H:%M:%S') $(basename "$0"): $*"; }

# Start this program again, in a session of its own, with other arguments.
detached() { setsid --fork sh "$0" "$@" </dev/null >>"$LOG" 2>&1; }

hosts_of() { scontrol show hostnames "$1"; }

# on_each start_slurmd|stop_slurmd HOST...: on all at once; fails when it failed on one.
on_each() {
  what=$1 running=
  shift
  for host in "$@"; do
    "$what" "$host" 9>&- &
    running="$running $!"
  done
  every=0
  for process in $running; do
    wait "$process" || { say "$what failed on one of" "$@"; every=1; }
  done
  return $every
}

# job_field JOB NAME: a field of `scontrol show job`, to the end of the word.
job_field() { scontrol show job "$1" | sed -n "s/^.*[[:space:]]$2=\([^[:space:]]*\).*\$/\1/p" | head -n 1; }

# comment_field JOB NAME: a field of the comment of a campaign's job. A path may have blanks: the order of the fields is fixed.
comment_field() {
  case $2 in
    campaign) part=1 ;; results) part=2 ;; configuration) part=3 ;; python) part=4 ;;
  esac
  scontrol show job "$1" | sed -n 's/[[:space:]]*$//
    s/[[:space:]]token=[^[:space:]]*$//
    s/^[[:space:]]*Comment=campaign=\(.*\) results=\(.*\) configuration=\([^ ]*\) python=\(.*\)$/\'$part'/p'
}

# noted JOB NAME: what is remembered of a job's composition.
noted() { cat "$STATE/jobs/$1/$2"; }

# of_composition JOB compose|release FURTHER...: `campaign compose` or `campaign release`, as the job's owner.
of_composition() {
  job=$1 verb=$2
  shift 2
  as_user "$(noted "$job" owner)" "$(noted "$job" python)" -m campaign.cli "$verb" "$(noted "$job" configuration)" \
    --campaign "$(noted "$job" campaign)" --results "$(noted "$job" results)" --name "job-$job" "$@"
}

# note JOB HOSTS: remember what is about to be composed for a job; there at once or not at all.
note() {
  new=$STATE/jobs/.$1
  rm -rf "$new" "$STATE/jobs/$1"
  mkdir -p "$new/hosts"
  for field in campaign results configuration python; do
    comment_field "$1" "$field" >"$new/$field"
  done
  job_field "$1" UserId | sed 's/(.*//' >"$new/owner"
  for host in $2; do
    : >"$new/hosts/$host"
  done
  mv "$new" "$STATE/jobs/$1"
}

# again JOB ATTEMPT WHY: whether a job may be tried again after so many attempts; one that may not is cancelled.
again() {
  say "job $1: $3 (attempt $2 of $ATTEMPTS)"
  scontrol update jobid="$1" admincomment="campaign: $3"
  [ "$2" -ge "$ATTEMPTS" ] || return 0
  scancel "$1"
  return 1
}

# give_back JOB: release what was composed for a job.
give_back() {
  if of_composition "$1" release; then
    rm -rf "$STATE/jobs/$1"
  else
    say "job $1: its composition could not be released; this is tried again with the next host that goes down" >&2
    return 1
  fi
}

# gone HOST...: the hosts are down. Compositions that have no host any more go, too; also those that did not go earlier.
gone() {
  for host in "$@"; do
    rm -f "$STATE"/jobs/*/hosts/"$host"
  done
  for of in "$STATE"/jobs/*; do
    [ -d "$of" ] || continue
    # Whoever takes the directory away is the one to release, and so is whoever finds it gone.
    rmdir "$of/hosts" 2>/dev/null || [ ! -d "$of/hosts" ] || continue
    give_back "$(basename "$of")"
  done
  find "$STATE/jobs" -name '.*.lock' -mtime +1 -delete
}
