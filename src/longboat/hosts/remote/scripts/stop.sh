# Stops and removes the unit that the manifest names.
XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
export XDG_RUNTIME_DIR
[ -e "$UNIT_FILE" ] || exit 0
systemctl $MANAGER disable --quiet --now "$UNIT"
rm -f "$UNIT_FILE"
rm -rf "$UNIT_FILE.d"
systemctl $MANAGER daemon-reload
systemctl $MANAGER reset-failed "$UNIT" 2>/dev/null
case $UNIT_FILE in
    */.config/systemd/user/*)
        rmdir -p "$(dirname "$UNIT_FILE")/default.target.wants" "$(dirname "$UNIT_FILE")" 2>/dev/null
        ;;
esac
exit 0
