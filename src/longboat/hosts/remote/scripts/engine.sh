# Installs one engine.
set -eu
UV_CACHE_DIR=$SOFTWARE/cache UV_PYTHON_INSTALL_DIR=$SOFTWARE/python UV_LINK_MODE=copy
export UV_CACHE_DIR UV_PYTHON_INSTALL_DIR UV_LINK_MODE
"$SOFTWARE/bin/longboat" engines install "$ENGINE"
rm -rf "$SOFTWARE/cache"
