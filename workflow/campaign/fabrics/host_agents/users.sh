# List the state and the users of one PCI function of a host. The script changes nothing. Only root sees the files of other users.
# Usage: sh users.sh ROOT PROCESSES ADDRESS. For the machine itself, ROOT is empty and PROCESSES is /proc. parse.parse_usage parses
# the output.
LC_ALL=C; export LC_ALL
root=$1 processes=$2 address=$3
pci=$root/sys/bus/pci/devices/$address
bdf=$(printf %s "$address" | tr a-f A-F)  # This is the form that nvidia-smi uses.

echo "== present"
[ -e "$pci" ] && echo yes
echo "== driver"
driver=$(readlink "$pci/driver" 2> /dev/null)
printf '%s\n' "${driver##*/}"

echo "== gpus"
for directory in "$root"/proc/driver/nvidia/gpus/*; do
    [ -d "$directory" ] && printf '%s\n' "${directory##*/}"
done
echo "== modules"
for module in nvidia_drm nvidia_modeset nvidia_uvm; do
    [ -e "$root/sys/module/$module" ] && echo "$module"
done

# Collect the device files of the function and the numbers of its block devices.
minor=$(sed -n 's/^Device Minor:[[:space:]]*//p' "$root/proc/driver/nvidia/gpus/$address/information" 2> /dev/null)
nodes= numbers= blocks= nets=
[ -n "$minor" ] && nodes=$root/dev/nvidia$minor
for block in "$pci"/nvme/nvme*/nvme*n[0-9]*; do
    [ -e "$block" ] || continue
    name=$(printf '%s' "${block##*/}" | sed 's/c[0-9]*n/n/')  # With multipath, nvme0c1n1 is a path of nvme0n1.
    for part in "$root/sys/class/block/$name" "$root/sys/class/block/$name/$name"p[0-9]*; do
        [ -e "$part" ] || continue
        blocks="$blocks ${part##*/}"
        nodes="$nodes $root/dev/${part##*/}"
        read -r number < "$part/dev" && numbers="$numbers $number"
    done
done
for drive in "$pci"/nvme/nvme*; do
    [ -e "$drive" ] && nodes="$nodes $root/dev/${drive##*/}"
done
for net in "$pci"/net/* "$pci"/virtio*/net/*; do
    [ -e "$net" ] && nets="$nets ${net##*/}"
done
for verbs in "$pci"/infiniband_verbs/*; do
    [ -e "$verbs" ] && nodes="$nodes $root/dev/infiniband/${verbs##*/}"
done

echo "== nodes"
for node in $nodes; do [ -e "$node" ] && printf '%s\n' "$node"; done

if [ "${driver##*/}" = nvidia ] && command -v nvidia-smi > /dev/null 2>&1; then
    echo "== drain"
    nvidia-smi drain -p "$bdf" -q < /dev/null 2>&1
    echo "== persistence"
    nvidia-smi -i "$bdf" --query-gpu=persistence_mode --format=csv,noheader < /dev/null 2>&1
    echo "== apps"
    nvidia-smi -i "$bdf" --query-compute-apps=pid,process_name --format=csv,noheader,nounits < /dev/null 2>&1
    echo "== apps-ended $?"
fi

# Find processes by the device file and by the number of the GPU, because the file may be removed, or differ in a container.
echo "== files"
set --
for node in $nodes; do
    if [ -e "$node" ]; then
        [ $# -gt 0 ] && set -- "$@" -o
        set -- "$@" -samefile "$node"
    fi
done
{
    [ $# -gt 0 ] && find -L "$processes"/[0-9]*/fd -maxdepth 1 \( "$@" \) -print 2> /dev/null
    if [ -n "$minor" ]; then
        find -L "$processes"/[0-9]*/fd -maxdepth 1 -type c -exec stat -L -c '%t:%T %n' {} + 2> /dev/null |
            sed -n "s/^c3:$(printf '%x' "$minor") //p"
    fi
} | sed "s|^$processes/\\([0-9]*\\)/.*|\\1|" | sort -un | while read -r pid; do
    user=$(stat -c %U "$processes/$pid" 2> /dev/null)
    words=$(tr '\0\t\n' '   ' < "$processes/$pid/cmdline" 2> /dev/null | cut -c 1-120)
    [ -n "$words" ] || read -r words < "$processes/$pid/comm"
    printf '%s\t%s\t%s\n' "$pid" "$user" "$words"
done 2> /dev/null

# Search all mount namespaces, because containers also mount file systems.
echo "== mounts"
for number in $numbers; do
    grep -hsF " $number " "$processes"/[0-9]*/mountinfo | cut -d ' ' -f 5
done | sort -u
for block in $blocks; do
    sed -n "s|^/dev/$block \\([^ ]*\\) .*|\\1|p" "$root/proc/mounts"
done 2> /dev/null | sort -u
echo "== claims"
for block in $blocks; do
    grep -qs "^/dev/$block[[:space:]]" "$root/proc/swaps" && echo "swap on $block"
    for holder in "$root/sys/class/block/$block/holders"/*; do
        [ -e "$holder" ] && echo "${holder##*/} is built on $block"
    done
    for member in "$root"/sys/fs/btrfs/*/devices/"$block"; do
        [ -e "$member" ] && echo "a mounted btrfs has $block"
    done
done
for number in $numbers; do
    grep -qs '^E:ID_FS_TYPE=zfs_member' "$root/run/udev/data/b$number" && [ -e "$root/sys/module/zfs" ] &&
        echo "ZFS may have a pool on block device $number"
done
for net in $nets; do
    for upper in "$root/sys/class/net/$net"/upper_* "$root/sys/class/net/$net"/master; do
        [ -e "$upper" ] && echo "$net is part of $(basename "$(readlink -f "$upper")")"
    done
done | sort -u
echo "== routes"
for net in $nets; do
    grep -s "^$net[[:space:]]" "$root/proc/net/route"
done
echo "== routes6"
for net in $nets; do
    grep -s "[[:space:]]$net\$" "$root/proc/net/ipv6_route"
done
echo "== addresses"
for net in $nets; do
    grep -s "[[:space:]]$net\$" "$root/proc/net/if_inet6"
    [ -z "$root" ] && command -v ip > /dev/null 2>&1 && ip -4 -o addr show dev "$net" 2> /dev/null
done

# Find a removal by an earlier attempt that still hangs. The pattern does not match its own command line.
echo "== writers"
grep -ls "/sys/bus/pci/devices/$address/[r]emove" "$processes"/[0-9]*/cmdline | sed "s|^$processes/\\([0-9]*\\)/.*|\\1|"
echo "== end"
