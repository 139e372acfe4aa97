# Deletes what longboat cluster up put on this host; the data folder stays.
set -eu
[ -f "$SOFTWARE/manifest.json" ] || exit 0
if [ -x "$SOFTWARE/current/bin/longboat" ]; then
    # 3: processes of the node do not end, and without the software nothing would end them later.
    "$SOFTWARE/bin/longboat" node stop --keep-state >/dev/null || [ $? != 3 ]
fi
printf '%s\n' "$FOLDERS" | while IFS= read -r folder; do
    [ -d "$folder" ] || continue
    find "$folder" -mindepth 1 -delete
    rmdir "$folder" 2>/dev/null || true  # its parent may belong to root
done
[ "$LINGERS" = 0 ] || loginctl disable-linger "$(id -un)" || true
# The manifest goes last: a removal that is cut can be repeated.
find "$SOFTWARE" -mindepth 1 -maxdepth 1 ! -name manifest.json -exec rm -rf {} +
rm -rf "$SOFTWARE"
