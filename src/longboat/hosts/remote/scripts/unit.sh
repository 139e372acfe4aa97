# Puts the unit that lies in the software's folder into its place.
set -eu
XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
export XDG_RUNTIME_DIR
mkdir -p "$(dirname "$UNIT_FILE")"
cp "$SOFTWARE/$UNIT" "$UNIT_FILE.new"
chmod 644 "$UNIT_FILE.new"
mv -T "$UNIT_FILE.new" "$UNIT_FILE"
systemctl $MANAGER daemon-reload
systemctl $MANAGER enable --quiet "$UNIT"
