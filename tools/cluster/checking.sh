# shellcheck shell=bash
# What the checks of this directory share; read by `source`. `work` is a directory of the check's own.

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

# eventually SECONDS WHAT COMMAND...
eventually() {
    local limit=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >"${work:?}/last" 2>&1; do
        ((SECONDS < limit)) || { cat "$work/last" >&2; fail "not in time: $what"; }
        sleep 0.3
    done
    say "$what"
}

# equal WHAT EXPECTED FOUND
equal() {
    [[ $2 == "$3" ]] || fail "$1: expected '$2', found '$3'"
    say "$1"
}
