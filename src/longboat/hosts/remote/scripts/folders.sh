# Makes the folders of Longboat and its record of them; no other file that exists is changed.
set -eu
umask 077
# The manifest comes first: with it, a later run knows a host on which this one was cut.
mkdir -p "$SOFTWARE"
printf '%s' "$MANIFEST" > "$SOFTWARE/manifest.json.part"
mv -T "$SOFTWARE/manifest.json.part" "$SOFTWARE/manifest.json"
mkdir -p "$SOFTWARE/bin" "$SOFTWARE/releases" "$SOFTWARE/parcels" "$DATA" "$RUN/tmp"
chmod 700 "$SOFTWARE" "$RUN"
