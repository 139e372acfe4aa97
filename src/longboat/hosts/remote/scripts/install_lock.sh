# Comes before a script that installs: one installation at a time, also beside one that a cut run has left.
set -eu
if ! command -v flock > /dev/null; then
    echo "this host has no flock; install its package util-linux" >&2
    exit 1
fi
exec 9<> "$SOFTWARE/install.lock"  # every process of the installation keeps it, and the last one frees it
flock -w "$WAIT_S" 9 || {
    [ $? = 1 ] || exit 1  # flock has said why
    holders=
    for opened in /proc/[0-9]*/fd/9; do
        pid=${opened#/proc/} pid=${pid%%/*}
        [ "$pid" = $$ ] || ! [ "$opened" -ef "$SOFTWARE/install.lock" ] || holders="$holders $pid"
    done
    echo "an installation still runs on this host; wait for its end${holders:+, or end it: kill$holders}" >&2
    exit 1
}
