#!/usr/bin/env bash
# Prints the home of a Java 17 or newer: JAVA_HOME's, else the one on PATH, else one under /usr/lib/jvm. Where there is
# none and this user may install packages with apt-get, installs one first.
set -euo pipefail

home_if_new_enough() { # $1: a java command
    local settings version
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$settings")
    [[ $version =~ ^[0-9]+$ ]] && [ "$version" -ge 17 ] || return 1
    sed -n 's/^ *java\.home = //p' <<<"$settings"
}

find_java() {
    local candidate
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java /usr/lib/jvm/*/bin/java; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
        home_if_new_enough "$candidate" && return 0
    done
    return 1
}

install_java() {
    local as_root=()
    command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true >/dev/null 2>&1 || return 1
        as_root=(sudo -n)
    fi
    echo "Installing Java with apt-get: Spark needs 17 or newer" >&2
    # Standard output is this script's answer, so all that apt-get says goes to standard error.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || true
    # A release of the system that is too new for 17 has a newer one as its default.
    local package
    for package in openjdk-17-jre-headless default-jre-headless; do
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$package" >&2 && return 0
    done
    return 1
}

find_java && exit 0
if install_java && find_java; then
    exit 0
fi
echo "Spark needs Java 17 or newer, and none was found in JAVA_HOME or on PATH: install one and run make again." >&2
exit 1
