# shellcheck shell=bash
# What goes wrong in a cluster: each is told by a condition that says what to do, and over without anybody's help when its cause is.
# Each has a namespace of its own, and they go wrong side by side. Read by `check`.

FAULTS=(quota denied accountless secretless unpullable leaving)
# Namespaces that are deleted while an apply is at work in them.
GOING=(interrupted destroying)

check_faults() {
    open_tenants
    break_tenants
    tell_faults
    mend_tenants
    check_going
    leave_tenants
}

# reason NAMESPACE KIND/NAME: what its condition Ready says
reason() { kubectl --namespace "$1" get "$2" --output 'jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.reason}: {.message}{end}'; }
says() { reason "$1" "$2" | grep --quiet --extended-regexp "$3"; }
ready_in() { kubectl --namespace "$1" wait terraformlayer/broken --for condition=Ready --timeout 1s; }

tenants_of_faults() {
    local index=1 name
    printf ' --set tenants[0].namespace=default'
    for name in "${FAULTS[@]}" "${GOING[@]}"; do
        printf ' --set tenants[%d].namespace=fault-%s --set tenants[%d].create=true' "$index" "$name" "$index"
        index=$((index + 1))
    done
}

# With an image for runners that nobody has yet.
open_tenants() {
    local before name
    have_guarded_registry
    before=$(pods)
    # shellcheck disable=SC2046 # one word an argument
    helm upgrade terrane charts/terrane --namespace "$system" --reuse-values $(tenants_of_faults) $(login_options) --set runner.image.tag=nothing >/dev/null
    for name in "${FAULTS[@]}" "${GOING[@]}"; do furnish_tenant "fault-$name"; done
    eventually 120 "the release has more tenants, and runners an image that nobody has" replaced "$before"
}

# The repository and its Secret, as another namespace has them: furnish_tenant NAMESPACE [FROM]
furnish_tenant() {
    local from=${2:-default}
    kubectl --namespace "$from" get secret check-git --output json |
        jq '{apiVersion, kind, type, data, metadata: {name: .metadata.name}}' | kubectl --namespace "$1" apply --filename - >/dev/null
    kubectl --namespace "$from" get terraformrepository check --output json |
        jq '{apiVersion, kind, spec, metadata: {name: .metadata.name}}' | kubectl --namespace "$1" apply --filename - >/dev/null
}

break_tenants() {
    local name
    kubectl --namespace fault-quota create quota none --hard pods=0 >/dev/null
    kubectl --namespace fault-accountless delete serviceaccount terrane-runner >/dev/null
    kubectl --namespace fault-secretless patch terraformrepository check --type merge \
        --patch '{"spec": {"repository": {"credentials": {"secretName": "gone"}}}}' >/dev/null
    kubectl apply --filename - >/dev/null <<'EOF'
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: fault-denied}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  validations: [{expression: "false", message: no pods are wanted here}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: fault-denied}
spec:
  policyName: fault-denied
  validationActions: [Deny]
  matchResources:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: fault-denied}}
EOF
    eventually 30 "a policy refuses pods" denies
    for name in "${FAULTS[@]}"; do make_layer broken "fault-$name" "fault-$name"; done
}
# By the policy's own words: a pod that the namespace's security level refuses would be refused before the policy is in force.
denies() {
    local said
    said=$(kubectl --namespace fault-denied create --dry-run=server --filename - 2>&1 <<'EOF'
apiVersion: v1
kind: Pod
metadata: {name: tried}
spec:
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: none
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
EOF
    ) || true
    grep --quiet 'no pods are wanted here' <<<"$said"
}

tell_faults() {
    eventually 90 "a quota that forbids pods is told by the layer" says fault-quota tfl/broken '^False PodRefused: .*exceeded quota: none'
    eventually 30 "a policy that refuses pods is told by the layer" says fault-denied tfl/broken '^False PodRefused: .*no pods are wanted here'
    eventually 30 "a missing account of runners is told by the layer" says fault-accountless tfl/broken \
        '^False PodRefused: .*serviceaccount "terrane-runner" not found'
    eventually 30 "a missing Secret is told by the repository" says fault-secretless tfr/check '^False .*Secret.*gone'
    eventually 60 "an image that cannot be pulled is told by the layer" says fault-unpullable tfl/broken \
        '^False PodNotStarting: .*terrane-runner:nothing cannot be pulled'
}

# The causes go, and the API server and etcd are killed while the controllers have all of that to do.
mend_tenants() {
    local pid name
    image_appears nothing
    pid=$(<"$STATE/run/terrane/kube-apiserver.pid")
    "$cluster" enter kill -KILL "$pid"
    eventually 60 "the API server is killed while layers wait" restarted kube-apiserver "$pid"
    eventually 60 "the API answers again" kubectl get --raw /readyz
    kubectl delete namespace fault-leaving --wait=false >/dev/null
    kubectl --namespace fault-quota delete quota none >/dev/null
    kubectl delete validatingadmissionpolicybinding/fault-denied validatingadmissionpolicy/fault-denied >/dev/null
    kubectl --namespace fault-accountless create serviceaccount terrane-runner >/dev/null
    kubectl --namespace default get secret check-git --output json | jq '{apiVersion, kind, data, metadata: {name: "gone"}}' |
        kubectl --namespace fault-secretless apply --filename - >/dev/null
    pid=$(<"$STATE/run/terrane/etcd.pid")
    "$cluster" enter kill -KILL "$pid"
    eventually 60 "etcd was killed meanwhile" restarted etcd "$pid"
    for name in quota denied accountless secretless unpullable; do
        eventually 150 "the layer of fault-$name is applied without anybody's help" ready_in "fault-$name"
    done
    eventually 60 "a namespace goes with the layers inside it" gone fault-leaving
}
# The runners' image under another tag, which is all that was missing: image_appears TAG
image_appears() {
    local place=http://$REGISTRY/v2/terrane-runner/manifests type=application/vnd.oci.image.manifest.v1+json
    curl --silent --fail --header "Accept: $type" "$place/$(chart_version)" >"$work/runner.manifest"
    curl --silent --fail --request PUT --header "Content-Type: $type" --data-binary "@$work/runner.manifest" "$place/$1" >/dev/null
    say "the image that could not be pulled is in the registry now"
}
gone() { ! kubectl get namespace "$1" --output name 2>/dev/null | grep --quiet .; }

in_mid_apply() {
    local pod
    pod=$(kubectl --namespace "$1" get pods --selector terrane.dev/layer=going,terrane.dev/action=apply --output name | grep .)
    kubectl --namespace "$1" logs "$pod" | grep --quiet 'second 1'
}
going_destroyed=$'  deletionPolicy: Destroy\n  remediationStrategy: {autoApply: true}'
# Kubernetes stops what runs there and makes nothing new, so a destroy cannot run any more.
check_going() {
    make_layer going fault-interrupted fault-interrupted
    make_layer going fault-destroying fault-destroying "$going_destroyed"
    eventually 120 "an apply is at work in a namespace" in_mid_apply fault-interrupted
    eventually 60 "and in another, whose layer is to be destroyed" in_mid_apply fault-destroying
    serve kubectl --namespace fault-interrupted get terraformruns --watch \
        --output 'jsonpath={.spec.action} {.status.state} {.status.attempts[-1:].reason}{"\n"}' >"$work/told" 2>/dev/null
    kubectl delete namespace fault-interrupted fault-destroying --wait=false >/dev/null
    eventually 120 "a namespace goes though an apply was at work in it" gone fault-interrupted
    stop_serving
    grep --quiet '^apply Failed Interrupted$' "$work/told" || fail "the end of that apply was not recorded: $(<"$work/told")"
    say "and how the apply ended was recorded before"
    eventually 120 "a layer that cannot be destroyed any more says so, and how to let it go" says fault-destroying tfl/going \
        '^False NamespaceTerminating: namespace fault-destroying is being deleted .* set deletionPolicy to Orphan '
    ! gone fault-destroying || fail "the namespace went and left infrastructure behind"
    kubectl --namespace fault-destroying patch terraformlayer going --type merge --patch '{"spec": {"deletionPolicy": "Orphan"}}' >/dev/null
    eventually 60 "as an orphan it lets the namespace go" gone fault-destroying
    # shellcheck disable=SC2046 # one word an argument
    helm upgrade terrane charts/terrane --namespace "$system" --reuse-values $(tenants_of_faults) >/dev/null
    furnish_tenant fault-destroying
    make_layer going fault-destroying fault-destroying "$going_destroyed"
    eventually 120 "the same layer made again takes up its state" found_again
    kubectl --namespace fault-destroying delete terraformlayer going --timeout 120s >/dev/null
    kubectl delete namespace fault-destroying --wait=false >/dev/null
    eventually 60 "and is destroyed before its namespace goes" gone fault-destroying
}
# What the interrupted apply had made is to be replaced: it is in the state.
found_again() {
    kubectl --namespace fault-destroying get terraformruns --output json |
        jq --exit-status '[.items[] | select(.spec.action == "plan" and (.status.result.summary.destroy // 0) > 0)] != []'
}

# Layers go before the rights to let their pods go.
leave_tenants() {
    local name before
    for name in quota denied accountless secretless unpullable; do
        kubectl --namespace "fault-$name" delete terraformlayer broken --timeout 60s >/dev/null
    done
    before=$(pods)
    helm upgrade terrane charts/terrane --namespace "$system" --reuse-values --set tenants[0].namespace=default --set runner.image.tag= >/dev/null
    for name in quota denied accountless secretless unpullable; do kubectl delete namespace "fault-$name" --wait=false >/dev/null; done
    eventually 60 "the tenants are gone again" available
}
