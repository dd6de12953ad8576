# Remove a PCI function from the bus, and wait at most SECONDS, because the kernel waits without a limit for the users of the function.
# Usage: sh remove.sh FILE SECONDS. FILE is the file `remove` of the function. The exit code is 75 if the removal is still running.
LC_ALL=C; export LC_ALL
path=$1 left=$(($2 * 10))
[ -e "$path" ] || exit 0
note=$(mktemp -d) || exit 1
# The background process keeps no stream of the session open, because ssh would wait for it.
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
