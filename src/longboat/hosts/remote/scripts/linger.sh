# Lets the user's services run without a login.
set -eu
loginctl enable-linger "$(id -un)"
