# Starts or restarts the node, and shows the end of its journal where that fails.
XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
export XDG_RUNTIME_DIR
systemctl $MANAGER reset-failed "$UNIT" 2>/dev/null
timeout "$LIMIT_S" systemctl $MANAGER "$ACTION" "$UNIT" && exit 0
failed=$?
journalctl $MANAGER -u "$UNIT" -n 15 -o cat --no-pager 2>/dev/null >&2
exit $failed
