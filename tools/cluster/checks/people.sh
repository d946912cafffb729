# shellcheck shell=bash
# A person at work: approves, asks the server, reverts drift, releases a lock; and a Git host. Read by `check`.

check_people() {
    check_person
    check_server
    check_unlock
    # Nobody needs to know of further drift.
    kubectl --namespace default patch terraformlayer checked --type merge --patch '{"spec": {"drift": {"interval": "24h"}}}' >/dev/null
}

alice_reads() { alice outputs checked weather | grep --quiet "$1"; }

check_person() {
    make_layer checked checked default '  drift: {interval: 10s, onDrift: report}
  runHistoryPolicy: {runs: 1}'
    eventually 120 "a layer without autoApply has its plan and waits" holds checked IsLastRelevantCommitPlanned True
    alice approve checked --reason "looks right" >"$work/said"
    grep --quiet '^approved plan' "$work/said" || fail "the approval was told otherwise: $(<"$work/said")"
    eventually 120 "a person's approval lets it be applied, and the pod found neither a token nor a way to write" ready checked
    check_answers
    set_world stormy
    eventually 120 "the world moved, and that is seen as drift" holds checked Drifted True
    ! alice drift checked >"$work/said" 2>&1 || fail "\`terrane drift\` exits 0 with drift"
    grep --quiet stormy "$work/said" || fail "\`terrane drift\` does not say what is found: $(<"$work/said")"
    alice drift checked --revert >/dev/null || fail "the drift could not be reverted"
    eventually 120 "a person has it reverted" holds checked Drifted False
    eventually 60 "which the outputs show" alice_reads stormy
}

# What became of a word on a plan is told by the word itself.
check_answers() {
    kubectl --namespace default wait terraformapprovals --all --for condition=Ready --timeout 30s >"$work/said" ||
        fail "an approval is not Ready: $(<"$work/said")"
    grep --quiet '^terraformapproval' "$work/said" || fail "there is no approval"
    say "kubectl wait --for condition=Ready works on an approval"
    kubectl --namespace default apply --filename - >/dev/null <<EOF
apiVersion: terrane.dev/v1alpha1
kind: TerraformApproval
metadata: {name: late}
spec: {layer: checked, planSha256: "$(printf '0%.0s' {1..64})", user: admin, decision: approve}
EOF
    kubectl --namespace default wait terraformapproval/late --for condition=Ready=False --timeout 30s >/dev/null ||
        fail "an approval of a plan that is not there says nothing"
    kubectl --namespace default delete terraformapproval late >/dev/null
    say "one whose plan is gone says so"
}

# What people ask the server for.
check_server() {
    alice outputs hello greeting >"$work/said"
    equal "outputs are shown" "Hello from Terrane" "$(<"$work/said")"
    alice outputs hello-values greeting >"$work/said"
    equal "a value of a ConfigMap has arrived" "Hello from a ConfigMap" "$(<"$work/said")"
    alice logs hello >"$work/said"
    grep --quiet 'Apply complete' "$work/said" || fail "the log does not tell of an apply: $(<"$work/said")"
    say "logs are shown"
    alice history hello --output json >"$work/said"
    grep --quiet '"audit"' "$work/said" || fail "the history has no audit"
    alice outputs checked has_kubernetes_token >"$work/said"
    equal "no runner saw a Kubernetes token" false "$(<"$work/said")"
    alice state list hello >"$work/said"
    equal "the state is in the datastore" terraform_data.greeting "$(<"$work/said")"
}

forwarded_port() { sed -n 's/^Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' "$work/forward" | grep .; }

# Reaches the server from the machine, through a port-forward and with the authority that the chart made: reach PATH CURL-OPTION...
reach() {
    local name=terrane-server.$system.svc path=$1
    shift
    kubectl --namespace "$system" get secret terrane-server-tls --output 'jsonpath={.data.ca\.crt}' | base64 --decode >"$work/ca.crt"
    curl --silent --show-error --noproxy '*' --max-time 20 --cacert "$work/ca.crt" --header "@$work/header" \
        --connect-to "$name:443:127.0.0.1:$(forwarded_port)" "$@" "https://$name/$path"
}

# Asks the server as alice: ask METHOD PATH
ask() {
    printf 'Authorization: Bearer %s\n' "$(kubectl --namespace default create token alice)" >"$work/header"
    reach "api/v1/namespaces/default/$2" --request "$1" --write-out ' %{http_code}'
}

# What a Git host says of a push, proved with a secret: hook SECRET
hook() {
    local url
    url=$(kubectl --namespace default get terraformrepository check --output 'jsonpath={.spec.repository.url}')
    printf 'X-Gitlab-Token: %s\n' "$1" >"$work/header"
    reach webhooks/gitlab/default/check --header 'X-Gitlab-Event: Push Hook' --header 'content-type: application/json' \
        --data "{\"ref\": \"refs/heads/main\", \"after\": \"$(printf '1%.0s' {1..40})\", \"project\": {\"git_http_url\": \"$url\"}}" \
        --output "$work/said" --write-out '%{http_code}'
}

# A Git host is believed by the secret of the repository, and what it says is in the repository's status.
check_webhook() {
    local secret server path=/apis/terrane.dev/v1alpha1/namespaces/default/terraformrepositories/check/status
    secret=$(head -c 24 /dev/urandom | base64)
    kubectl --namespace default create secret generic terrane-webhooks --from-file=check=/dev/stdin <<<"$secret" >/dev/null
    equal "a webhook with another secret is not believed" 401 "$(hook "not the secret at all")"
    equal "a webhook is written down" 202 "$(hook "$secret")"
    equal "the repository says which host it came from" gitlab \
        "$(kubectl --namespace default get terraformrepository check --output 'jsonpath={.status.webhook.host}')"
    # kubectl would read the status first, which the server has no right to.
    write_credentials
    server=$(kubectl config view --minify --output 'jsonpath={.clusters[0].cluster.server}')
    curl --silent --show-error --noproxy '*' --max-time 20 --cacert "$work/api-ca.crt" --cert "$work/admin.pem" --request PATCH \
        --header "Impersonate-User: system:serviceaccount:$system:terrane-server" --header 'Content-Type: application/merge-patch+json' \
        --data '{"status": {"branches": null}}' --output "$work/refused" "$server$path"
    grep --quiet "the server writes nothing of a repository's status but webhook" "$work/refused" ||
        fail "it was not refused, or otherwise: $(<"$work/refused")"
    say "the server writes nothing else of a repository's status"
    kubectl --namespace default delete secret terrane-webhooks >/dev/null
}

# Nobody holds a lock here; before the server says so, it looks whether anybody could be at work.
check_unlock() {
    serve kubectl --namespace "$system" port-forward service/terrane-server :443 >"$work/forward" 2>&1
    eventually 30 "the server is reached through a port-forward" forwarded_port
    equal "a lock is released that nobody holds" " 200" "$(ask DELETE "layers/checked/state/lock?id=nobody")"
    check_webhook
    stop_serving
}
