# Tells what stands on this host, one KEY=VALUE a line. Changes nothing.
if [ "$SUDO" = 1 ] || [ "$(id -u)" = 0 ]; then
    UNIT_FILE=/etc/systemd/system/$UNIT manager=
else
    UNIT_FILE=$HOME/.config/systemd/user/$UNIT manager=--user
fi
XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
export XDG_RUNTIME_DIR
say() { printf '%s=%s\n' "$1" "$2"; }
sum_of() { [ -f "$1" ] && sha256sum < "$1" | cut -c1-64; }
say user "$(id -un)"
say uid "$(id -u)"
say home "$HOME"
say machine "$(uname -m)"
say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)"
say time "$(date +%s)"
for python in python3 python3.11 python3.12 python3.13 python3.14; do
    command -v "$python" >/dev/null 2>&1 || continue
    say python "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
done
free_kb() {
    path=$1
    while [ ! -e "$path" ]; do path=$(dirname "$path"); done
    df -Pk "$path" | awk 'NR == 2 {print $4 " " $6}'
    [ -w "$path" ] || say closed "$path" >&3
}
exec 3>&1
say disk_software "$(free_kb "$SOFTWARE")"
say disk_data "$(free_kb "$DATA")"
free_kb "$RUN" > /dev/null
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "0A" {print "listen=" $2}'
ip -o -4 addr show 2>/dev/null | awk '{print "card=" $2 " " $4}'
if [ "$SUDO" = 1 ] && [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null && say sudo yes || say sudo no
fi
if [ -d /run/systemd/system ]; then
    say systemd "$(systemctl --version | awk 'NR == 1 {print $2}')"
    systemctl --user show-environment >/dev/null 2>&1 && say user_manager yes
fi
[ -e "/var/lib/systemd/linger/$(id -un)" ] && say linger yes
command -v pkcheck >/dev/null 2>&1 && pkcheck --action-id org.freedesktop.login1.set-self-linger --process $$ \
    >/dev/null 2>&1 && say may_linger yes
[ -r /proc/driver/nvidia/version ] && say driver "$(awk 'NR == 1 {for (i = 1; i <= NF; i++) if ($i ~ /^[0-9]+\.[0-9.]+$/) {print $i; exit}}' /proc/driver/nvidia/version)"
say cards "$(ls /proc/driver/nvidia/gpus 2>/dev/null | wc -l)"
if [ -f "$SOFTWARE/manifest.json" ]; then
    say manifest "$(tr -d '\n' < "$SOFTWARE/manifest.json")"
elif [ -n "$(ls -A "$SOFTWARE" 2>/dev/null | grep -vx manifest.json.part)" ]; then
    say foreign "$SOFTWARE"
fi
case $RUN in
    "$SOFTWARE"/*) ;;
    *) [ -z "$(ls -A "$RUN" 2>/dev/null)" ] || say used_run "$RUN" ;;
esac
for folder in "$SOFTWARE/bin" "$SOFTWARE/releases" "$SOFTWARE/parcels" "$DATA" "$RUN/tmp"; do
    [ -d "$folder" ] || say missing "$folder"
done
say current "$(readlink "$SOFTWARE/current" 2>/dev/null | sed 's|.*/||')"
for mark in "$SOFTWARE"/releases/*/.complete; do
    [ -e "$mark" ] && say release "$(basename "$(dirname "$mark")")"
done
say uv "$(sum_of "$SOFTWARE/bin/uv")"
say launcher "$(sum_of "$SOFTWARE/bin/longboat")"
say token "$(sum_of "$SOFTWARE/cluster_token")"
say fleet "$(sum_of "$SOFTWARE/fleet.yaml")"
say unit "$(sum_of "$UNIT_FILE")"
say active "$(systemctl $manager show -p ActiveState --value "$UNIT" 2>/dev/null)"
say enabled "$(systemctl $manager is-enabled "$UNIT" 2>/dev/null)"
say node "$(tr -d '\n' < "$RUN/node.json" 2>/dev/null)"
for marker in "$DATA"/engines/*/longboat-engine.json; do
    [ -e "$marker" ] && say engine "$(basename "$(dirname "$marker")")"
done
say done yes
