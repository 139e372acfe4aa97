# Installs one engine.
set -eu
exec 9<> "$SOFTWARE/install.lock"  # a run that was cut may still install
if ! flock -w "$WAIT_S" 9; then
    echo "process $(cat "$SOFTWARE/install.lock") still installs on this host; wait for its end, or end it" >&2
    exit 1
fi
echo $$ > "$SOFTWARE/install.lock"
UV_CACHE_DIR=$SOFTWARE/cache UV_PYTHON_INSTALL_DIR=$SOFTWARE/python UV_LINK_MODE=copy
export UV_CACHE_DIR UV_PYTHON_INSTALL_DIR UV_LINK_MODE
"$SOFTWARE/bin/longboat" engines install "$ENGINE"
rm -rf "$SOFTWARE/cache"
