# shellcheck shell=bash
# The chart: installed as docs/install.md says, its policies, and upgraded with the address that people use. Read by `check`.

available() {
    kubectl --namespace "$system" wait deployment --selector app.kubernetes.io/name=terrane --for condition=Available --timeout 1s &&
        kubectl --namespace "$system" rollout status deployment --selector app.kubernetes.io/name=terrane --timeout 1s
}
ready() { kubectl --namespace default wait "terraformlayer/$1" --for condition=Ready --timeout 1s; }
# condition LAYER TYPE: its status
condition() { kubectl --namespace default get "terraformlayer/$1" --output "jsonpath={.status.conditions[?(@.type==\"$2\")].status}"; }
holds() { [[ $(condition "$1" "$2") == "$3" ]]; }
revision() { kubectl --namespace default get "terraformlayer/$1" --output 'jsonpath={.status.revision.applied}'; }

# A block of commands or values of docs/install.md, as it stands there: documented HEADING NUMBER
documented() {
    awk -v heading="## $1" -v wanted="$2" '
        /^## / { here = $0 == heading }
        here && /^    / { if (!inside) block++; inside = 1; if (block == wanted) { found = 1; print substr($0, 5) } next }
        { inside = 0 }
        END { exit !found }' docs/install.md || fail "docs/install.md has no block $2 below \`$1\`"
}

# When the install began, as the audit log writes it.
installed=
# The namespaces enforce the level that a careful administrator would, before anything is there.
check_install() {
    local begin=$SECONDS
    installed=$(date --utc +%Y-%m-%dT%H:%M:%S.000000Z)
    kubectl create namespace "$system" >/dev/null
    kubectl label namespace default "$system" pod-security.kubernetes.io/enforce=restricted >/dev/null
    documented "Try it" 2 >"$work/documented"
    bash -euo pipefail "$work/documented" >"$work/notes" || fail "a command of docs/install.md failed: $(<"$work/notes")"
    grep --quiet '^Terrane .* works in default\.$' "$work/notes" || fail "the notes do not say where Terrane works: $(<"$work/notes")"
    ready hello >/dev/null || fail "the example is not applied"
    eventually 120 "so is the layer with values of a ConfigMap and a Secret" ready hello-values
    eventually 120 "so is the layer with hooks" ready hello-hooks
    eventually 120 "and the one with a script" ready hello-script
    say "the commands of docs/install.md lead to an applied layer in $((SECONDS - begin)) s"
    ((SECONDS - begin < 180)) || fail "that is more than three minutes"
    check_documented_logs
    check_outputs
    declare_notification
    check_repo
    check_terraform
    check_notification
    check_policies
    check_upgrade
    check_inside
    serve_code
    hire_alice
    check_tenant
}

# With the program that the images were made of for that of a release.
check_documented_logs() {
    documented "Try it" 3 >"$work/documented"
    PATH="$(dirname "$(readlink -f "${TERRANE_PROGRAM:?say which program, as \`make test-cluster\` does}")"):$PATH" \
        timeout 180 bash -euo pipefail "$work/documented" >"$work/said" || fail "a command of docs/install.md failed: $(<"$work/said")"
    grep --quiet 'Apply complete' "$work/said" || fail "it shows no log: $(<"$work/said")"
    grep --quiet 'Hello from Terrane' "$work/said" || fail "it shows no outputs: $(<"$work/said")"
    say "the commands of docs/install.md show log and outputs through a port-forward"
}

# Those policies that no schema can express. The administrator may make pods and approvals, so it is not RBAC that refuses.
check_policies() {
    local sha256
    sha256=$(printf '0%.0s' {1..64})
    ! kubectl apply --filename - 2>"$work/refused" <<EOF || fail "an approval in another's name was taken"
apiVersion: terrane.dev/v1alpha1
kind: TerraformApproval
metadata: {name: forged, namespace: default}
spec: {layer: hello, planSha256: "$sha256", user: somebody, decision: approve}
EOF
    grep --quiet 'spec.user is "somebody" but the request is made by "admin"' "$work/refused" || fail "other words: $(<"$work/refused")"
    say "an approval in another's name is refused"
    ! kubectl apply --filename - 2>"$work/refused" <<EOF || fail "a pod that says it is a run's was taken"
apiVersion: v1
kind: Pod
metadata: {name: forged, namespace: default, labels: {terrane.dev/run-uid: abc}}
spec:
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: $PAUSE_IMAGE
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
EOF
    grep --quiet "only Terrane's controller makes pods with the label" "$work/refused" || fail "other words: $(<"$work/refused")"
    say "a pod that says it is a run's is refused"
}

authorities() { kubectl --namespace "$system" get secrets terrane-datastore-tls terrane-server-tls --output 'jsonpath={.items[*].data}' | sha256sum; }
pods() { kubectl --namespace "$system" get pods --selector app.kubernetes.io/name=terrane --output 'jsonpath={.items[*].metadata.uid}'; }
replaced() { [[ $(pods) != "$1" ]] && available; }

check_upgrade() {
    local before made url=https://terrane-server.$system.svc
    have_pushed
    have_guarded_registry
    made=$(authorities)
    before=$(pods)
    documented Tenants 1 >"$work/tenants.yaml"
    documented Tenants 2 >"$work/runner.yaml"
    cat >"$work/upgrade.yaml" <<EOF
syncInterval: 2
server: {publicUrl: $url}
controller:
  maxRunnerPods: 3
  registryRewrites: ["images.example=http://$REGISTRY", "docker.io/alustan=http://$REGISTRY/alustan"]
  runnerOverrides: [resources, nodeSelector, tolerations, volumes=emptyDir, volumeMounts, podSecurityContext=supplementalGroups]
EOF
    make --no-print-directory deploy HELM_ARGUMENTS="--reuse-values $(printf -- '--values %s ' "$work"/{tenants,runner,upgrade}.yaml)$(login_options)" >/dev/null
    eventually 180 "make deploy: new pods are available" replaced "$before"
    equal "certificates are kept" "$made" "$(authorities)"
    equal "the server has announced itself" "$url" \
        "$(kubectl --namespace "$system" get configmap terrane-service --output 'jsonpath={.data.url}')"
}
