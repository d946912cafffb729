# shellcheck shell=bash
# An apply under way while what is around it is killed, restarted, drained; and the controllers' changes of office. Read by `check`.

check_survival() {
    check_killed
    check_drained
    check_lost
    check_offices
    check_paused_leader
    eventually 120 "the layer whose apply was interrupted is applied by itself" ready slow-drained
}

# The pod of a layer's apply, as soon as the tool is at work in it.
apply_pod() { kubectl --namespace default get pods --selector "terrane.dev/layer=$1,terrane.dev/action=apply" --output name | grep .; }
at_work() { kubectl --namespace default logs "$(apply_pod "$1")" | grep --quiet 'second 1'; }

# Of all applies of a layer: state, attempts, exit code and reason of the last: applies LAYER [NAMESPACE]
applies() {
    kubectl --namespace "${2:-default}" get terraformruns --output json | jq --raw-output --arg layer "$1" '
        .items[] | select(.spec.layer.name == $layer and .spec.action == "apply")
        | "\(.status.state) \(.status.attempts | length) \(.status.attempts[-1].exitCode) \(.status.attempts[-1].reason)"'
}

leader() { kubectl --namespace "$system" get lease terrane-controller --output 'jsonpath={.spec.holderIdentity}'; }
# A process' identity begins with its pod's name.
leader_pod() { leader | cut --delimiter _ --fields 1; }
leads_another() {
    local now
    now=$(leader)
    [[ -n $now && $now != "$1" ]]
}
# Seconds from a moment (as `date +%s.%N`) to the beginning of the term under way.
until_office() {
    local acquired
    acquired=$(kubectl --namespace "$system" get lease terrane-controller --output 'jsonpath={.spec.acquireTime}')
    awk -v from="$1" -v to="$(date --date "$acquired" +%s.%N)" 'BEGIN { printf "%.1f", to - from }'
}
at_most() { awk -v found="$1" -v limit="$2" 'BEGIN { exit !(found <= limit) }'; }

# A signal to the first process of a pod of Terrane's, which neither it nor the kubelet is asked about: signal POD SIGNAL
signal() {
    local id
    id=$(kubectl --namespace "$system" get pod "$1" --output 'jsonpath={.status.containerStatuses[0].containerID}')
    "$cluster" enter ctr --namespace k8s.io tasks kill --signal "$2" "${id#containerd://}"
}

check_killed() {
    local pod pid
    make_layer slow-killed slow-killed
    eventually 90 "an apply that takes 20 s is at work" at_work slow-killed
    pod=$(apply_pod slow-killed)
    signal "$(leader_pod)" SIGKILL
    kubectl --namespace "$system" delete pods --selector app.kubernetes.io/component=server --force --grace-period 0 >/dev/null 2>&1
    kubectl --namespace "$system" delete pods --selector app.kubernetes.io/component=datastore --force --grace-period 0 >/dev/null 2>&1
    pid=$(<"$STATE/run/terrane/kube-apiserver.pid")
    "$cluster" enter kill -KILL "$pid"
    eventually 60 "controller, servers, datastore and the API server were killed meanwhile" restarted kube-apiserver "$pid"
    eventually 60 "the API answers again" kubectl get --raw /readyz
    equal "the runner went on" "$pod Running 0" "$pod $(kubectl --namespace default get "$pod" \
        --output 'jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}')"
    eventually 120 "its result was taken" ready slow-killed
    equal "there was one apply, with one attempt" "Succeeded 1 0 Succeeded" "$(applies slow-killed)"
    eventually 60 "the server answers again" alice logs slow-killed
    equal "which worked through once" 1 "$(alice logs slow-killed | grep --count 'second 20$')"
    equal "its state is stored" terraform_data.slow "$(alice state list slow-killed)"
    eventually 60 "all parts are available again" available
}

# The only node is drained of the one pod: the release needs it.
check_drained() {
    make_layer slow-drained slow-drained
    eventually 90 "another apply is at work" at_work slow-drained
    kubectl drain "$NODE_NAME" --pod-selector terrane.dev/layer=slow-drained --force --ignore-daemonsets --delete-emptydir-data --timeout 60s \
        >"$work/drained" 2>&1 || fail "the node was not drained: $(<"$work/drained")"
    equal "a drained node's apply is interrupted and its end recorded" "Failed 1 1 Interrupted" "$(applies slow-drained)"
    eventually 30 "its state was saved" alice state list slow-drained
    # Nothing of what follows can begin while the node takes no pods.
    equal "with what it had begun to make" terraform_data.slow "$(alice state list slow-drained)"
    equal "and its lock is free" "the state of slow-drained is not locked" "$(alice state locks slow-drained)"
    kubectl uncordon "$NODE_NAME" >/dev/null
}

# The Lease of a layer's state: who holds it, and since when.
held() {
    local state
    state=$(kubectl --namespace default get terraformruns --output json |
        jq --raw-output --arg layer "$1" 'first(.items[] | select(.spec.layer.name == $layer and .spec.action == "apply")) | .spec.state')
    kubectl --namespace "$system" get lease "state-${state:0:40}" --output 'jsonpath={.metadata.resourceVersion} {.spec}'
}
has_no_task() {
    local tasks
    tasks=$("$cluster" enter ctr --namespace k8s.io tasks list) && ! grep --quiet "^$1 .*RUNNING" <<<"$tasks"
}

# To the API a node whose kubelet is stopped is one that is lost: its pods may be at work, and nobody is told. For less time than after which the
# cluster takes all of the node's pods for gone, as there is no other node.
check_lost() {
    local pod task before
    make_layer slow-lost slow-lost
    eventually 90 "an apply is at work on a node that will be lost" at_work slow-lost
    pod=$(apply_pod slow-lost)
    task=$(kubectl --namespace default get "$pod" --output 'jsonpath={.status.containerStatuses[0].containerID}')
    before=$(held slow-lost)
    # `finish` lets it go on, should something fail.
    stopped=$(<"$STATE/run/terrane/kubelet.pid")
    "$cluster" enter kill -STOP "$stopped"
    kubectl --namespace default delete "$pod" --force --grace-period 0 --wait=false >/dev/null 2>&1
    eventually 40 "it ended, its pod was deleted by force, and the node said nothing" has_no_task "${task#containerd://}"
    equal "its pod is there all the same, and no other" "$pod" "$(apply_pod slow-lost)"
    equal "nobody guesses how it ended" "Running 1 null null" "$(applies slow-lost)"
    equal "the state's lock is held as before" "$before" "$(held slow-lost)"
    "$cluster" enter kill -CONT "$stopped"
    stopped=
    eventually 90 "its end is recorded when the node is back" ready slow-lost
    equal "there was one apply, with one attempt" "Succeeded 1 0 Succeeded" "$(applies slow-lost)"
    eventually 60 "and its pod goes" absent "$pod"
    eventually 60 "all parts are available" available
}

check_offices() {
    local before begin took
    before=$(leader)
    begin=$(date +%s.%N)
    kubectl --namespace "$system" delete pod "${before%%_*}" --wait=false >/dev/null
    eventually 30 "another controller leads after the leader was told to end" leads_another "$before"
    took=$(until_office "$begin")
    say "that took $took s"
    at_most "$took" 8 || fail "a leader that ends must hand over at once"
    eventually 60 "there are two controllers again" available
    before=$(leader)
    begin=$(date +%s.%N)
    signal "${before%%_*}" SIGKILL
    eventually 60 "another process leads after the leader was killed" leads_another "$before"
    took=$(until_office "$begin")
    say "that took $took s"
    at_most "$took" 25 || fail "a killed leader must be followed in about 15 s"
    eventually 60 "there are two controllers again" available
}

# What a pod's process asked the API to change since a moment, but for the Lease that it stands for.
changes_by() {
    jq --raw-output --arg pod "$1" --arg since "$2" '
        select(.user.extra["authentication.kubernetes.io/pod-name"] == [$pod] and .stageTimestamp > $since
            and (.verb | IN("create", "update", "patch", "delete", "deletecollection"))
            and (.objectRef.resource != "leases" or .objectRef.name != "terrane-controller"))
        | "\(.stageTimestamp) \(.verb) \(.objectRef.resource)/\(.objectRef.name)"' "$audit"
}
lost_office() { kubectl --namespace "$system" logs "$1" --since-time "$2" | grep 'no longer leads'; }

check_paused_leader() {
    local before pod since begin
    make_layer slow-paused slow-paused
    eventually 90 "a third apply is at work" at_work slow-paused
    before=$(leader)
    pod=${before%%_*}
    begin=$(date --utc +%Y-%m-%dT%H:%M:%S.%6NZ)
    [[ -n $(changes_by "$pod" 2000) ]] || fail "the log does not tell which pod asks"
    signal "$pod" SIGSTOP
    eventually 60 "another controller leads while the leader is stopped" leads_another "$before"
    since=$(date --utc +%Y-%m-%dT%H:%M:%S.%6NZ)
    eventually 90 "and records the apply's end" ready slow-paused
    signal "$pod" SIGCONT
    eventually 60 "the old leader finds out that it is none" lost_office "$pod" "$begin"
    equal "and changed nothing" "" "$(changes_by "$pod" "$since")"
    equal "there was one apply" "Succeeded 1 0 Succeeded" "$(applies slow-paused)"
}
