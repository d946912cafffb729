# shellcheck shell=bash
# The release over time: rolled back, removed, installed again, and installed without Helm. Read by `check`.

check_release() {
    note_rights
    check_rollback
    check_rights
    check_uninstall
    check_static
}

check_rollback() {
    local before made
    made=$(authorities)
    before=$(pods)
    helm rollback terrane 1 --namespace "$system" >/dev/null
    eventually 180 "helm rollback: the pods before are available" replaced "$before"
    equal "certificates are kept" "$made" "$(authorities)"
    before=$(revision hello)
    sed 's/Hello from Terrane/Hello again/' examples/quickstart/1-code.yaml | kubectl apply --filename - >/dev/null
    eventually 240 "a changed ConfigMap is a commit, which is applied" moved hello "$before"
}
moved() { [[ $(revision "$1") != "$2" ]] && ready "$1"; }

check_uninstall() {
    helm uninstall terrane --namespace "$system" >/dev/null
    eventually 60 "helm uninstall: the pods are gone" none "$system"
    ready hello >/dev/null || fail "the layer did not stay"
    kubectl --namespace "$system" get persistentvolumeclaim terrane-datastore >/dev/null || fail "the claim with the states did not stay"
    say "definitions, layers and the claim with the states stay"
    have_pushed
    helm install terrane "oci://$REGISTRY/charts/terrane" --version "$(chart_version)" --plain-http --namespace "$system" >/dev/null 2>&1
    eventually 180 "it can be installed again, from a registry" available
    equal "with images of that registry, by digest" "$(grep "^$REGISTRY/terrane@" "$work/pushed")" \
        "$(kubectl --namespace "$system" get deployment terrane-controller --output 'jsonpath={.spec.template.spec.containers[0].image}')"
    kubectl --namespace default annotate terraformlayer hello --overwrite "terrane.dev/sync=again" >/dev/null
    eventually 120 "what was applied before is known: nothing is to be changed" unchanged
    # Those of the example go as docs/install.md has them go; the cluster goes in the end.
    kubectl --namespace default get terraformlayers,terraformrepositories --output name | grep --invert-match 'hello\|quickstart' |
        xargs kubectl --namespace default delete --timeout 120s >/dev/null
    documented "Try it" 4 | grep --invert-match '^make ' >"$work/documented"
    timeout 180 bash -euo pipefail "$work/documented" >/dev/null || fail "a command of docs/install.md failed"
    eventually 60 "and removed again, with the example" none "$system"
}

chart_version() { sed -n 's/^version: //p' charts/terrane/Chart.yaml; }

# The same without Helm.
check_static() {
    kubectl apply --server-side --filename deploy/install.yaml >/dev/null
    eventually 180 "kubectl apply --filename deploy/install.yaml: the parts are available, with certificates that a Job made" available
    kubectl apply --filename examples/quickstart >/dev/null
    eventually 180 "the example is applied there too" ready hello
    kubectl delete --filename examples/quickstart --timeout 120s >/dev/null
    kubectl apply --server-side --kustomize deploy >/dev/null
    say "applying the same again, by Kustomize, is no mistake"
    kubectl kustomize examples/kustomize >"$work/overlay"
    equal "the overlay of examples/kustomize takes no image but from its own registry" "registry.example.org/terrane:0.1.0" \
        "$(sed -n 's/^ *image: //p' "$work/overlay" | sort --unique)"
    grep --quiet -- '--runner-image=registry.example.org/terrane-runner:0.1.0$' "$work/overlay" || fail "runners have another image there"
    documented "Removing it" 2 >"$work/documented"
    timeout 120 bash -euo pipefail "$work/documented" >/dev/null || fail "the definitions do not go"
    equal "the definitions go with their label" "" "$(kubectl get customresourcedefinitions --output name)"
}
none() { [[ -z $(kubectl --namespace "$1" get pods --selector app.kubernetes.io/name=terrane --output name) ]]; }
unchanged() {
    kubectl --namespace default get terraformruns --output json | jq --exit-status \
        '[.items[] | select(.spec.layer.name == "hello" and .spec.trigger.kind == "manual" and .status.result.message == "No changes.")] != []'
}

# Roles as they are while the server announces itself; the log is looked at before the release goes: then the roles go too, a moment
# before the last pod.
note_rights() { kubectl get clusterroles,roles --all-namespaces --output json >"$work/roles.json"; }
check_rights() {
    # Where namespaces were taken from the tenants, or deleted, refusals are to be expected. What was before is another install's.
    jq --compact-output --arg since "$installed" 'select(.stageTimestamp >= $since and (.objectRef.namespace // "" | startswith("fault-") | not))' \
        "$audit" >"$work/audit.jsonl"
    "$here/rights" "$work/audit.jsonl" "$work/roles.json" || fail "the chart's rights are not those that are used"
    say "no part was refused anything, and each right of the chart was used"
}
