# List the GPUs, NVMe drives and network cards of a host with their PCI links. The script changes nothing.
# Usage: sh look.sh ROOT. ROOT is empty for the machine itself. parse.parse_devices parses the output.
LC_ALL=C; export LC_ALL
root=$1
tab=$(printf '\t')

# Print the first line of a file without surrounding blanks, or nothing if the file cannot be read.
first() {
    value=
    if [ -r "$1" ]; then read -r value < "$1"; fi 2> /dev/null
    printf '%s' "$value" | tr '\t' ' '
}

# Set p to the directory of the PCI function to which $1 belongs.
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

# Print one line: kind, identity, model, address, driver, current and maximum width and speed, maximum width and speed of the port
# above.
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
        mac=$(first "$net/bonding_slave/perm_hwaddr")  # In a bond, the other file has the address of the bond.
        line nic "${mac:-$(first "$net/address")}" "$(first "$p/vendor"):$(first "$p/device")"
    fi
done
echo "== end"
