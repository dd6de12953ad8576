# What a host enumerates: GPUs, NVMe drives and network cards, with their PCI links. Changes nothing.
# usage: sh look.sh ROOT - ROOT is empty for the machine itself. Output: see parse.devices.
LC_ALL=C; export LC_ALL
root=$1
tab=$(printf '\t')

# The first line of a file, without the blanks around it; nothing when it cannot be read.
first() {
    value=
    if [ -r "$1" ]; then read -r value < "$1"; fi 2> /dev/null
    printf '%s' "$value" | tr '\t' ' '
}

# Sets p to the directory of the PCI function that $1 belongs to.
function_of() {
    p=$(readlink -f "$1") || return 1
    while [ -n "$p" ]; do
        case ${p##*/} in
            [0-9a-f]*:[0-9a-f][0-9a-f]:[0-9a-f][0-9a-f].[0-7]) return 0 ;;
        esac
        p=${p%/*}
    done
    return 1
}

# One line: kind, identity, model, address, driver; width and speed as trained and possible; what the port above can do.
line() {
    driver=$(readlink "$p/driver")
    printf '%s\t%s\t%s\t%s\t%s' "$1" "$2" "$3" "${p##*/}" "${driver##*/}"
    for file in "$p/current_link_width" "$p/max_link_width" "$p/current_link_speed" "$p/max_link_speed" \
        "${p%/*}/max_link_width" "${p%/*}/max_link_speed"; do
        printf '\t%s' "$(first "$file")"
    done
    printf '\n'
}

echo "== nvidia-smi"
if command -v nvidia-smi > /dev/null 2>&1; then
    fields=uuid,name,pci.bus_id,pcie.link.width.current,pcie.link.width.max,pcie.link.gen.current,pcie.link.gen.max,pstate
    nvidia-smi --query-gpu=$fields --format=csv,noheader,nounits < /dev/null 2>&1
    echo "== nvidia-smi-ended $?"
fi

echo "== driver"
for file in "$root"/proc/driver/nvidia/gpus/*/information; do
    [ -r "$file" ] || continue
    directory=${file%/information}
    for name in "Model" "GPU UUID"; do
        sed -n "s/^$name: */${directory##*/}$tab$name$tab/p" "$file"
    done
done

echo "== pci"
for device in "$root"/sys/bus/pci/devices/*; do
    [ "$(first "$device/vendor")" = 0x10de ] || continue
    case $(first "$device/class") in
        0x03*) if function_of "$device"; then line gpu "" ""; fi ;;
    esac
done
for drive in "$root"/sys/class/nvme/nvme*; do
    if [ -e "$drive/device" ] && function_of "$drive/device"; then
        line nvme "$(first "$drive/serial")" "$(first "$drive/model")"
    fi
done
for net in "$root"/sys/class/net/*; do
    if [ -e "$net/device" ] && function_of "$net/device"; then
        mac=$(first "$net/bonding_slave/perm_hwaddr")  # a card in a bond shows the bond's own otherwise
        line nic "${mac:-$(first "$net/address")}" "$(first "$p/vendor"):$(first "$p/device")"
    fi
done
echo "== end"
