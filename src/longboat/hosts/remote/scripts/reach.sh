# Opens a connection to each address, all at once, and prints the addresses that answer. A refusal is an answer; a
# firewall that drops packets makes an attempt run out of time.
for address in $ADDRESSES; do
    {
        told=$(LC_ALL=C timeout "$LIMIT_S" bash -c "exec 3<>/dev/tcp/$address/$PORT" 2>&1) && told=refused
        case "$told" in *refused*) echo "$address" ;; esac
    } &
done
wait
