#!/usr/bin/env bash
# Runs a command beside a real S3 server on loopback, which ends with it: Ceph's radosgw from Debian's packages, in
# memory. Nothing is installed: the packages are unpacked below .venv, once. The command finds the server in
# TXLOG_TEST_S3, "endpoint key secret". Best effort: without a server the command runs all the same, and the tests that
# need one are skipped, and say so. A server of your own is used where TXLOG_TEST_S3 is set already.
#
#   tools/with_s3.sh COMMAND [ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."

[ -n "${TXLOG_TEST_S3:-}" ] && exec "$@"

packages=$PWD/.venv/radosgw
work=
fetch() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    local fetching
    fetching=$(mktemp -d "$PWD/.venv/radosgw.XXXXXX")
    echo "Fetching an S3 server (radosgw) for the tests" >&2
    mkdir -p "$fetching/debs/partial" "$fetching/root"
    if { apt-get update -qq || true; } >/dev/null 2>&1 &&
        timeout 300 apt-get install -qq -y --download-only --no-install-recommends -o "Dir::Cache::archives=$fetching/debs" \
            ceph-mon ceph-osd radosgw ceph-common >"$fetching/log" 2>&1; then
        for deb in "$fetching"/debs/*.deb; do dpkg -x "$deb" "$fetching/root"; done
        rm -rf "$packages" "$fetching/debs"
        mv "$fetching/root" "$packages"
    fi
    rm -rf "$fetching"
    [ -x "$packages/usr/bin/radosgw" ]
}

stop() {
    for pid in ${pids:-}; do kill "$pid" 2>/dev/null || true; done
    [ -z "$work" ] || rm -rf "$work"
}

free_ports() {
    "$PWD/.venv/bin/python" - <<'PY'
import socket

sockets = [socket.socket() for _ in range(3)]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))
PY
}

# A process of the server's own group, so that an interrupted test run does not end it before its own end does.
serve() {
    local name=$1
    shift
    setsid "$@" >"$work/$name.log" 2>&1 &
    pids="${pids:-} $!"
}

until_true() {
    for _ in $(seq 100); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    return 1
}

start() {
    [ -x "$packages/usr/bin/radosgw" ] || fetch || return 1
    local libraries first second port
    libraries=$(dirname "$(find "$packages/usr/lib" -name 'librados.so.2' -print -quit)")
    read -r first second port <<<"$(free_ports)"
    work=$(mktemp -d)
    mkdir -p "$work/mon" "$work/osd" "$work/run"
    cat >"$work/ceph.conf" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = [v2:127.0.0.1:$first,v1:127.0.0.1:$second]
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
ms_mon_client_mode = crc
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
run dir = $work/run
admin socket = $work/run/\$name.asok
log file = $work/\$name.log
erasure code dir = $libraries/ceph/erasure-code
plugin dir = $libraries/ceph
osd class dir = $libraries/rados-classes
crash dir = $work
[mon]
mon data = $work/mon
[osd]
osd data = $work/osd
osd objectstore = memstore
memstore device bytes = 4294967296
osd memory target = 939524096
osd crush update on start = true
[client.admin]
rgw frontends = beast endpoint=127.0.0.1:$port tcp_nodelay=1
rgw dns name = 127.0.0.1
keyring = /dev/null
CONF
    # The libraries of the server are for it alone: the command keeps its own.
    local -a with=(env "CEPH_CONF=$work/ceph.conf" "PATH=$packages/usr/bin:$packages/usr/sbin:$packages/sbin:$PATH"
        "LD_LIBRARY_PATH=$packages/lib/$(basename "$libraries"):$libraries:$libraries/ceph:$packages/usr/lib"
        "PYTHONPATH=$packages/usr/lib/python3/dist-packages")
    {
        "${with[@]}" monmaptool --create --fsid "$(sed -n 's/^fsid = //p' "$work/ceph.conf")" \
            --addv a "[v2:127.0.0.1:$first,v1:127.0.0.1:$second]" "$work/monmap"
        "${with[@]}" ceph-mon -i a --mkfs --monmap "$work/monmap"
    } >"$work/make.log" 2>&1 || return 1
    serve mon "${with[@]}" ceph-mon -i a -f
    until_true "${with[@]}" timeout 5 ceph -s || return 1
    { "${with[@]}" timeout 20 ceph osd create && "${with[@]}" ceph-osd -i 0 --mkfs; } >>"$work/make.log" 2>&1 || return 1
    serve osd "${with[@]}" ceph-osd -i 0 -f
    serve rgw "${with[@]}" radosgw -n client.admin -f
    until_true curl -s -o /dev/null "http://127.0.0.1:$port/" || return 1
    "${with[@]}" timeout 60 radosgw-admin -n client.admin user create --uid=test --display-name=test \
        --access-key=AKTEST --secret-key=SKTEST >>"$work/make.log" 2>&1 || return 1
    export TXLOG_TEST_S3="http://127.0.0.1:$port AKTEST SKTEST"
}

trap stop EXIT
start || echo "No S3 server could be started: the tests that need one will be skipped." >&2
status=0
"$@" || status=$?
exit "$status"
