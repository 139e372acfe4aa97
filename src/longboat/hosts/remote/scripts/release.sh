# Installs a release beside the others: a Python environment that is marked as complete at the end.
set -eu
umask 022
FOLDER=$SOFTWARE/releases/$RELEASE
PARCEL=$SOFTWARE/parcels/$RELEASE
[ ! -e "$FOLDER/.complete" ] || exit 0  # the run that was cut has installed it
UV_CACHE_DIR=$SOFTWARE/cache UV_PYTHON_INSTALL_DIR=$SOFTWARE/python UV_NO_PROGRESS=1 UV_LINK_MODE=copy
export UV_CACHE_DIR UV_PYTHON_INSTALL_DIR UV_NO_PROGRESS UV_LINK_MODE
[ -z "$INDEX_URL" ] || export UV_DEFAULT_INDEX="$INDEX_URL"
uv="$SOFTWARE/bin/uv"
from=
if [ "$IS_BUNDLE" = 1 ]; then
    from="--no-index --find-links $PARCEL/wheels"
    export UV_PYTHON_DOWNLOADS=never
    if [ -d "$PARCEL/python" ]; then
        mkdir -p "$UV_PYTHON_INSTALL_DIR"
        cp -R "$PARCEL/python/." "$UV_PYTHON_INSTALL_DIR/"
    fi
fi
rm -rf "$FOLDER"
"$uv" venv --quiet --no-project --python "$PYTHON" "$FOLDER"
"$uv" pip install --quiet $from --require-hashes --no-deps --python "$FOLDER/bin/python" -r "$PARCEL/longboat.lock"
"$uv" pip install --quiet $from --no-deps --python "$FOLDER/bin/python" "$REQUIREMENT"
"$FOLDER/bin/python" -m compileall -q "$FOLDER/lib" >/dev/null 2>&1 || true
"$FOLDER/bin/longboat" --version
rm -rf "$SOFTWARE/cache"
touch "$FOLDER/.complete"
