# shellcheck shell=bash
# The cluster's start and end: what it prints, and that the machine is afterwards as it was. Read by `check`.

# The recipe of `make cluster`, whose lines a shell evaluates.
recipe_of_cluster() { awk '/^cluster:/ { on = 1; next } on && !/^\t/ { exit } on' Makefile; }

note_machine() { machine >"$work/before"; }

start() {
    local begin=$SECONDS
    "$cluster" up "$images" >"$work/lines"
    # All that it is made of is in the cache: `make test-cluster` has seen to that.
    ((SECONDS - begin <= 60)) || fail "the cluster was ready after $((SECONDS - begin)) s, which is more than a minute: see $STATE/log"
    equal "two lines are printed, and nothing else" "export KUBECONFIG= export PATH=" "$(sed 's/=.*/=/' "$work/lines" | xargs)"
    equal "nothing that \`make cluster\` does before that prints there" "" "$(recipe_of_cluster | head --lines -1 | grep --invert-match '>&2$' || true)"
    # shellcheck disable=SC1091 # written just now
    source "$work/lines"
    equal "helm is the pinned one" "v$HELM_VERSION" "$(helm version --template '{{.Version}}')"
    equal "kubectl is the pinned one" "v$KUBERNETES_VERSION" "$(kubectl version --client --output yaml | sed -n 's/ *gitVersion: //p')"
    equal "a second start finds the first" "$(<"$work/lines")" "$("$cluster" up)"
    equal "the kernel's settings stay the machine's" "$(grep '^kernel\|^vm' "$work/before")" "$(machine | grep '^kernel\|^vm')"
}

# The namespaces that only the node's processes are in.
namespaces_of_node() {
    local pid
    read -r pid _ <"$STATE/node.pid"
    readlink "/proc/$pid/ns/pid" "/proc/$pid/ns/net" "/proc/$pid/ns/mnt" | xargs
}

# A node whose first process is killed, and the one that takes its place, with nothing on it.
died=
check_dying() {
    local namespaces pid
    namespaces=$(namespaces_of_node)
    read -r pid _ <"$STATE/node.pid"
    kill -KILL "$pid"
    # shellcheck disable=SC2086 # one word a namespace
    eventually 60 "a node whose first process is killed takes its other processes with it" none_in $namespaces
    "$cluster" up >"$work/again"
    equal "a new start replaces a node that died" "$(<"$work/lines")" "$(<"$work/again")"
    died=1
}

check_leaving() {
    local namespaces
    [[ -n $died ]] || check_dying
    namespaces=$(namespaces_of_node)
    # As docs/install.md ends.
    documented "Try it" 4 | grep '^make ' >"$work/documented"
    bash -euo pipefail "$work/documented"
    # shellcheck disable=SC2086 # one word a namespace
    equal "no process is left in the node's namespaces" "" "$(processes $namespaces)"
    machine >"$work/after"
    diff "$work/before" "$work/after" >&2 || fail "the machine is not as it was before"
    say "devices, addresses, routes, rules, mounts, cgroups, kernel settings and directories are as before"
    "$cluster" down
}

# The machine as far as a cluster could change it. Mounts below the directory for temporary files are left out: they
# belong to whatever else runs.
machine() {
    echo "== devices"
    ip -oneline link | cut -d: -f2
    echo "== addresses"
    ip -oneline address | awk '{ print $2, $3, $4 }'
    echo "== routes"
    { ip -4 route show table all && ip -6 route show table all; } | sed 's/ expires [0-9]*sec//'
    echo "== network namespaces"
    ip netns list
    echo "== rules"
    { iptables-save && ip6tables-save; } | sed -e '/^#/d' -e 's/\[[0-9:]*\]//'
    echo "== mounts"
    awk '{ print $5, $6 }' /proc/self/mountinfo | grep -v "^${TMPDIR:-/tmp}/" | sort
    echo "== cgroups"
    find /sys/fs/cgroup -maxdepth 2 -type d | sort
    echo "== kernel"
    sysctl net.ipv4.ip_forward kernel.panic kernel.panic_on_oops vm.overcommit_memory vm.panic_on_oom \
        kernel.keys.root_maxkeys kernel.keys.root_maxbytes
    echo "== directories"
    for directory in "$STATE" /etc/cni /etc/kubernetes /run/containerd /var/lib/cni /var/lib/containerd /var/lib/etcd \
        /var/lib/kubelet /var/log/containers /var/log/pods; do
        [[ ! -e $directory ]] || echo "$directory"
    done
}

# Processes that are in the node's namespaces: processes NAMESPACE...
processes() {
    local process kind
    for process in /proc/[0-9]*; do
        for kind in pid net mnt; do
            [[ " $* " != *" $(readlink "$process/ns/$kind" 2>/dev/null || true) "* ]] || echo "$process"
        done
    done
}

none_in() { [[ -z $(processes "$@") ]]; }
