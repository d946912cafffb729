# shellcheck shell=bash
# What Flux, Argo CD and scripts rest on: conditions to wait for, health, and manifests that are applied again and again. Read by `check`.

check_gitops() {
    check_waiting
    check_health
    check_older_kubectl
    check_reapplied
}

check_waiting() {
    local object
    for object in terraformrepository/quickstart terraformlayer/hello "$(first_run plan)" "$(first_run apply)"; do
        kubectl --namespace default wait "$object" --for condition=Ready --timeout 30s >/dev/null || fail "$object is not Ready"
    done
    say "kubectl wait --for condition=Ready works on a repository, a layer, a plan and an apply"
}
first_run() { kubectl --namespace default get terraformruns --output json | jq --raw-output --arg action "$1" \
    '[.items[] | select(.spec.layer.name == "hello" and .spec.action == $action)][0] | "terraformrun/" + .metadata.name'; }

# The health of the object on standard input, changed by a program of jq, as Argo CD would tell it: health PROGRAM
health() {
    {
        printf 'obj = '
        jq --raw-output "$1"' | def lua:
            if type == "object" then "{" + (to_entries | map("[" + (.key | @json) + "] = " + (.value | lua)) | join(", ")) + "}"
            elif type == "array" then "{" + (map(lua) | join(", ")) + "}"
            elif . == null then "nil" else @json end; lua'
        printf 'local function check()\n%s\nend\nprint(check().status)\n' "$(<deploy/argocd/health.lua)"
    } >"$work/health.lua"
    lua5.1 "$work/health.lua"
}

check_health() {
    local set='def put(kind; truth): .status.conditions |= (map(select(.type != kind)) + [{type: kind, status: truth, message: "m"}]);'
    kubectl --namespace default get terraformlayer hello --output json >"$work/hello.json"
    equal "Argo CD finds an applied layer healthy" Healthy "$(health . <"$work/hello.json")"
    equal "and a repository" Healthy "$(kubectl --namespace default get terraformrepository quickstart --output json | health .)"
    equal "and a run that succeeded" Healthy "$(kubectl --namespace default get "$(first_run apply)" --output json | health .)"
    equal "one under way is progressing" Progressing "$(health "$set put(\"Ready\"; \"False\") | put(\"Reconciling\"; \"True\")" <"$work/hello.json")"
    equal "one that goes no further is degraded" Degraded "$(health "$set put(\"Ready\"; \"False\") | put(\"Stalled\"; \"True\")" <"$work/hello.json")"
    equal "one that waits is suspended" Suspended "$(health "$set put(\"Ready\"; \"False\")" <"$work/hello.json")"
    equal "one that was changed since is progressing" Progressing "$(health '.metadata.generation += 1' <"$work/hello.json")"
    equal "and so is one that was never looked at" Progressing "$(health 'del(.status)' <"$work/hello.json")"
}

runs_of_hello() { kubectl --namespace default get terraformruns --output json | jq '[.items[] | select(.spec.layer.name == "hello")] | length'; }
answered() { kubectl --namespace default get terraformlayer hello --output 'jsonpath={.status.lastSync}' | grep --quiet "^$1\$" && ready hello; }

# What curl needs to ask the API as the administrator: api-ca.crt and admin.pem.
write_credentials() {
    kubectl config view --raw --minify --output json >"$work/admin.json"
    jq --raw-output '.clusters[0].cluster["certificate-authority-data"]' "$work/admin.json" | base64 --decode >"$work/api-ca.crt"
    (umask 077 && jq --raw-output '.users[0].user | .["client-certificate-data"], .["client-key-data"]' "$work/admin.json" |
        while read -r part; do base64 --decode <<<"$part"; done >"$work/admin.pem")
}

# By one connection, as a kubectl of the administrator would: 1,000 of them would take minutes to start.
check_reapplied() {
    local before count server path=/apis/terrane.dev/v1alpha1/namespaces/default/terraformlayers/hello
    before=$(runs_of_hello)
    server=$(kubectl config view --minify --output 'jsonpath={.clusters[0].cluster.server}')
    write_credentials
    awk '/^kind: TerraformLayer$/ { found = 1 } { text = text $0 "\n" } /^---$/ { if (found) exit; text = "" } END { if (found) printf "%s", text }' \
        examples/quickstart/3-layer.yaml | sed '/^---$/d' >"$work/layer.yaml"
    for ((count = 0; count < 1000; count++)); do
        printf 'next\nurl = "%s%s?fieldManager=check"\nrequest = PATCH\nheader = "Content-Type: application/apply-patch+yaml"\n' "$server" "$path"
        printf 'data-binary = "@%s"\ncacert = "%s"\ncert = "%s"\noutput = /dev/null\nwrite-out = "%%{http_code}\\n"\n' \
            "$work/layer.yaml" "$work/api-ca.crt" "$work/admin.pem"
    done | sed 1d >"$work/reapply"
    curl --silent --show-error --noproxy '*' --config "$work/reapply" >"$work/answers"
    equal "a manifest is applied 1,000 times" "1000 200" "$(sort "$work/answers" | uniq --count | xargs)"
    # What that had started would have been started before this.
    kubectl --namespace default annotate terraformlayer hello terrane.dev/sync=after-1000 >/dev/null
    eventually 90 "then a plan is asked for" answered after-1000
    equal "and that is the only run that was started" "$((before + 1))" "$(runs_of_hello)"
}

# What people ask of Terrane's kinds, once by each kubectl. Programs of other versions say the same: the words are the API's.
ASKED=("get terrane" "get tfl --output wide" "get tfl hello --output yaml" "get tfrun --field-selector spec.layer.name=hello" "describe tfl hello"
    "explain terraformlayer.spec" "explain terraformlayer.spec.drift --recursive" "explain terraformapproval.status"
    "wait tfl/hello --for condition=Ready --timeout 5s" "get tfl hello --output jsonpath={.status.why}"
    "get tfl hello --output custom-columns=NAME:.metadata.name,STATE:.status.state" "annotate tfl hello terrane.dev/none=1 --dry-run=server"
    'patch tfl hello --type merge --patch {"spec":{"suspend":true}} --dry-run=server' "get tfl nothing"
    'patch tfl hello --type merge --patch {"spec":{"path":"../x"}} --dry-run=server' "apply --filename examples/quickstart/3-layer.yaml --dry-run=server"
    "apply --server-side --filename examples/quickstart/3-layer.yaml --dry-run=server" "auth can-i create terraformapprovals.terrane.dev"
    "api-resources --api-group terrane.dev")
# Ages differ from one moment to the next.
without_ages() { sed --regexp-extended 's/\b([0-9]+[dhms])+\b/AGE/g'; }

# says_the_same PROGRAM WORDS
says_the_same() {
    # shellcheck disable=SC2086 # one word an argument
    { kubectl --namespace default $2 2>&1 || true; } | without_ages >"$work/said"
    # shellcheck disable=SC2086 # one word an argument
    { "$1" --namespace default $2 2>&1 || true; } | without_ages >"$work/said-by-older"
    diff "$work/said" "$work/said-by-older"
}

check_older_kubectl() {
    local words program
    program=$(command -v kubectl-older) || fail "there is no kubectl-older: run \`tools/setup cluster\` first."
    for words in "${ASKED[@]}"; do
        # Runs go on, and may end between the two.
        eventually 60 "kubectl $words ends in the same words by an older one" says_the_same "$program" "$words"
    done
    say "${#ASKED[@]} commands end in the same words by $("$program" version --client --output yaml | sed -n 's/ *gitVersion: //p')"
}
