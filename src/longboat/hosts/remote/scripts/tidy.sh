# Deletes releases that no node uses.
set -eu
for folder in "$SOFTWARE"/releases/* "$SOFTWARE"/parcels/*; do
    [ "$(basename "$folder")" = "$RELEASE" ] || rm -rf "$folder"
done
