#!/usr/bin/env bash
# Runs a command beside real servers of object stores on loopback, all in memory, which end with it. Nothing is
# installed on the machine: what they need is fetched below .venv, once.
#
#   S3      Ceph's radosgw, from Debian's packages      TXLOG_TEST_S3     "endpoint key secret"
#   Azure   Azurite, by npm                             TXLOG_TEST_AZURE  connection string
#   GCS     fake-gcs-server, built by go install        TXLOG_TEST_GCS    URL
#
# The command finds each in the environment, by the name on the right. Best effort: without one of them the command runs
# all the same, and the tests that need it are skipped, and say so. A server of your own is used where its name is set.
#
#   tools/with_stores.sh [--only s3|azure|gcs] COMMAND [ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."

[ -x .venv/bin/python ] || { echo "tools/with_stores.sh needs .venv: run make venv first." >&2; exit 1; }
work=$(mktemp -d)

radosgw=$PWD/.venv/radosgw
azurite=$PWD/.venv/azurite
fake_gcs=$PWD/.venv/fake-gcs

# The functions below are called in conditions, where bash ignores `set -e`: each step that a later one needs is checked.
fetch_s3() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    local fetching
    fetching=$(mktemp -d "$PWD/.venv/radosgw.XXXXXX") || return 1
    echo "Fetching an S3 server (radosgw)" >&2
    mkdir -p "${fetching:?}/debs/partial" "${fetching:?}/root" || return 1
    if { timeout 120 apt-get update -qq || true; } >/dev/null 2>&1 &&
        timeout 300 apt-get install -qq -y --download-only --no-install-recommends -o "Dir::Cache::archives=${fetching:?}/debs" \
            ceph-mon ceph-osd radosgw ceph-common >"${fetching:?}/log" 2>&1 && unpack "${fetching:?}"; then
        rm -rf "${radosgw:?}"
        mv "${fetching:?}/root" "$radosgw"
    fi
    rm -rf "${fetching:?}"
    [ -x "$radosgw/usr/bin/radosgw" ]
}

unpack() {
    local deb
    for deb in "${1:?}"/debs/*.deb; do dpkg -x "$deb" "${1:?}/root" || return 1; done
}

fetch_azure() {
    command -v npm >/dev/null || return 1
    local fetching
    fetching=$(mktemp -d "$PWD/.venv/azurite.XXXXXX") || return 1
    echo "Fetching an Azure Blob server (Azurite) for the tests" >&2
    if timeout 180 npm install --prefix "${fetching:?}" --no-audit --no-fund --fetch-retries=0 azurite@3.35.0 \
        >"${fetching:?}/log" 2>&1; then
        rm -rf "${azurite:?}"
        mv "${fetching:?}" "$azurite"
    fi
    rm -rf "${fetching:?}"
    [ -x "$azurite/node_modules/.bin/azurite-blob" ]
}

fetch_gcs() {
    command -v go >/dev/null || return 1
    echo "Building a Google Cloud Storage server (fake-gcs-server) for the tests" >&2
    GOBIN=${fake_gcs:?} timeout 300 go install github.com/fsouza/fake-gcs-server@v1.56.1 >"$work/go.log" 2>&1 || true
    [ -x "$fake_gcs/fake-gcs-server" ]
}

# Ends the servers when this script has ended in any way, SIGKILL too.
watch() {
    setsid bash -c 'while kill -0 "$1"; do sleep 1; done
        for pid in $(cat "$2"/*.pid); do kill "$pid"; done
        rm -rf "${2:?}"' - $$ "$work" </dev/null >/dev/null 2>&1 &
    # Not where it has ended already, for want of setsid.
    disown 2>/dev/null || true
}

# By the number of this process, so that another run of this script that starts now looks at others; below the ports that
# the system gives to connections, one of which could take a port before its server does.
free_ports() {
    "$PWD/.venv/bin/python" - $$ <<'PY'
import socket
import sys

for block in range(4000):
    first = 10_000 + (int(sys.argv[1]) + block) % 4000 * 5
    sockets = [socket.socket() for _ in range(5)]
    try:
        for number, each in enumerate(sockets):
            each.bind(("127.0.0.1", first + number))
    except OSError:
        continue
    print(*range(first, first + 5))
    break
PY
}

# A process of the server's own group, so that an interrupted test run does not end it before its own end does.
serve() {
    local name=$1
    shift
    setsid "$@" >"$work/$name.log" 2>&1 &
    echo $! >"$work/$name.pid"
}

until_true() {
    for _ in $(seq 200); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    return 1
}

start_s3() {
    [ -x "$radosgw/usr/bin/radosgw" ] || fetch_s3 || return 1
    local libraries first=${ports[0]} second=${ports[1]} port=${ports[2]}
    libraries=$(dirname "$(find "$radosgw/usr/lib" -name 'librados.so.2' -print -quit)")
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
# By default the server ends where less than a twentieth of the disk is free.
mon data avail crit = 0
mon data avail warn = 0
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
# By default the parts of a deleted object take up memory for two hours more.
rgw gc obj min wait = 5
rgw gc processor period = 10
keyring = /dev/null
CONF
    # The libraries of the server are for it alone: the command keeps its own.
    local -a with=(env "CEPH_CONF=$work/ceph.conf" "PATH=$radosgw/usr/bin:$radosgw/usr/sbin:$radosgw/sbin:$PATH"
        "LD_LIBRARY_PATH=$radosgw/lib/$(basename "$libraries"):$libraries:$libraries/ceph:$radosgw/usr/lib"
        "PYTHONPATH=$radosgw/usr/lib/python3/dist-packages")
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
    # Another server may have answered on its port.
    kill -0 "$(cat "$work/rgw.pid")" || return 1
    echo "http://127.0.0.1:$port AKTEST SKTEST" >"$work/s3.setting"
}

start_azure() {
    [ -x "$azurite/node_modules/.bin/azurite-blob" ] || fetch_azure || return 1
    local port=${ports[3]} account=devstoreaccount1
    # The one account that Azurite has, whose key is public.
    local key=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==
    (cd "${work:?}" && serve azurite "$azurite/node_modules/.bin/azurite-blob" --inMemoryPersistence --skipApiVersionCheck \
        --disableTelemetry --silent --blobHost 127.0.0.1 --blobPort "$port")
    until_true curl -s -o /dev/null "http://127.0.0.1:$port/" || return 1
    printf '%s' "DefaultEndpointsProtocol=http;AccountName=$account;AccountKey=$key;" \
        "BlobEndpoint=http://127.0.0.1:$port/$account;" >"$work/azure.setting"
}

start_gcs() {
    [ -x "$fake_gcs/fake-gcs-server" ] || fetch_gcs || return 1
    local port=${ports[4]}
    serve fake-gcs "$fake_gcs/fake-gcs-server" -backend memory -scheme http -host 127.0.0.1 -port "$port" \
        -public-host "127.0.0.1:$port" -log-level error
    until_true curl -s -o /dev/null "http://127.0.0.1:$port/storage/v1/b" || return 1
    echo "http://127.0.0.1:$port" >"$work/gcs.setting"
}

stores="s3 azure gcs"
if [ "${1:-}" = --only ]; then
    stores=$2
    shift 2
fi
watch
read -r -a ports <<<"$(free_ports)"
for store in $stores; do
    setting=TXLOG_TEST_${store^^}
    [ -n "${!setting:-}" ] || "start_$store" ||
        echo "No server for $store could be started: what needs one is skipped. Set $setting to use one of your own." >&2 &
done
wait
for store in $stores; do
    setting=TXLOG_TEST_${store^^}
    if [ -s "$work/$store.setting" ]; then
        export "$setting=$(cat "$work/$store.setting")"
    fi
done
status=0
"$@" || status=$?
exit "$status"
