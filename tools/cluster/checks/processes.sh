# shellcheck shell=bash
# What this check does in the hands of somebody who is not root: the control plane and Terrane's parts as processes. Read by `check`.

# A user namespace takes every right from its process and leaves it the files that it may read: the tools are in root's cache.
check_processes() {
    env --unset CI --unset KUBECONFIG unshare --user --map-user 65534 --map-group 65534 "$here/check" "$images" >&2 ||
        fail "the check fails in the hands of a user who is not root"
    say "a user who is not root has a layer applied by processes"
}
