# Take a PCI function off the bus, and do not wait for it longer than told: the kernel waits for whoever uses it, for ever.
# usage: sh remove.sh FILE SECONDS - FILE is the function's `remove`. Ends with 75 when the removal still runs.
LC_ALL=C; export LC_ALL
path=$1 left=$(($2 * 10))
[ -e "$path" ] || exit 0
note=$(mktemp -d) || exit 1
# Nothing of the session is left open in the background: ssh would wait for it.
(
    echo 1 > "$path"
    echo $? > "$note/code.new"
    mv "$note/code.new" "$note/code"
) < /dev/null > /dev/null 2> "$note/words" &
while [ ! -e "$note/code" ] && [ "$left" -gt 0 ]; do
    sleep 0.1
    left=$((left - 1))
done
code=75
if [ -e "$note/code" ]; then read -r code < "$note/code"; fi
cat "$note/words" >&2
rm -rf "$note"
exit "$code"
