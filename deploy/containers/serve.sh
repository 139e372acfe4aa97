#!/bin/sh
# Runs one node of a cluster in the foreground: the head, or with LONGBOAT_JOIN=ADDRESS another node.
# LONGBOAT_FLEET_FILE names the fleet file that the head brings up. LONGBOAT_LABELS holds "key=value key=value".
set -eu

for label in ${LONGBOAT_LABELS:-}; do
    set -- "$@" --label "$label"
done
if [ -n "${LONGBOAT_TOKEN_FILE:-}" ]; then
    if [ ! -r "$LONGBOAT_TOKEN_FILE" ]; then
        echo "error: user $(id -u) of the container cannot read the token in $LONGBOAT_TOKEN_FILE" >&2
        echo "  → on the host: chown $(id -u) cluster_token" >&2
        exit 2
    fi
    # A secret of the container engine is readable for others; Longboat refuses such a file.
    (umask 077 && mkdir -p "$LONGBOAT_RUN" && cat "$LONGBOAT_TOKEN_FILE" > "$LONGBOAT_RUN/cluster_token")
    set -- "$@" --token-file "$LONGBOAT_RUN/cluster_token"
fi

if [ -n "${LONGBOAT_JOIN:-}" ]; then
    exec longboat node start --join "$LONGBOAT_JOIN" --block "$@"
fi

stop() {
    longboat node stop --keep-state
    exit 143
}
trap stop TERM INT
longboat node start --head --storage /state/gcs "$@"
if [ -n "${LONGBOAT_FLEET_FILE:-}" ]; then
    # A day, since the first start downloads the weights; in the background, so that a signal need not wait for it.
    longboat up "$LONGBOAT_FLEET_FILE" --detach --timeout 86400 &
    wait $! || {
        longboat status > /dev/null 2>&1 || exit 1
        echo "the fleet that runs stays as it is; correct $LONGBOAT_FLEET_FILE, and start the container again" >&2
    }
fi
# A node whose runner was killed is taken over by another one: 30 s are left for that.
failures=0
while [ "$failures" -lt 15 ]; do
    if python3 -S /usr/local/bin/health.py; then failures=0; else failures=$((failures + 1)); fi
    sleep 2 &
    wait $!
done
exit 1
