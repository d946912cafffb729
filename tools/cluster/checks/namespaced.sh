# shellcheck shell=bash
# An install without rights over the cluster, by the commands of docs/install.md: on definitions of an older version, with Git servers at private
# addresses denied, and then with states in a bucket, two datastores and a fleet in parts. It leaves the cluster as it found it, for `install`.
# Read by `check`.

# With four shards each belongs to another one (crates/engine/src/shard.rs).
PARTED=(payments east north south)
bucket=$HOST_ADDRESS:7070

check_namespaced() {
    administer
    check_older_definitions
    check_private_addresses
    check_bucket
    check_parts
    check_no_rights
    leave_namespaced
}

# What needs rights over the cluster, done once by somebody who has them.
administer() {
    documented "Without rights over the cluster" 1 >"$work/documented"
    bash -euo pipefail "$work/documented" >/dev/null
    printf 'apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n' "${PARTED[@]}" | kubectl apply --filename - >/dev/null
    kubectl label namespace "$system" "${PARTED[@]}" pod-security.kubernetes.io/enforce=restricted >/dev/null
}

# Without what came to layers and approvals later.
put_older_definitions() {
    kubectl get crd terraformlayers.terrane.dev terraformapprovals.terrane.dev --output json | jq '
        .items[] |= if .spec.names.kind == "TerraformLayer"
            then del(.spec.versions[0].schema.openAPIV3Schema.properties | .spec.properties.runHistoryPolicy, .status.properties.inputs)
            else del(.spec.versions[0].subresources) end' | kubectl replace --validate=false --filename -
}
# Both controllers say it in their logs.
tell_what_definitions_lack() {
    kubectl --namespace "$system" logs --selector app.kubernetes.io/component=controller --prefix --tail 100 >"$work/logs"
    # shellcheck disable=SC2016 # the quotes are Terrane's
    (($(sed -n 's/^\(\S*\) .*nothing is done for now: .* lack TerraformLayer spec\.runHistoryPolicy, .*`kubectl apply --server-side --force-conflicts --filename deploy\/crds`.*/\1/p' \
        "$work/logs" | sort --unique | wc -l) == 2))
}
# Pods of the controllers, each with how often it was started again.
controllers() {
    kubectl --namespace "$system" get pods --selector app.kubernetes.io/component=controller \
        --output 'jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{"\n"}{end}'
}

check_older_definitions() {
    local before
    eventually 30 "the definitions are those of an older version" put_older_definitions
    bash -euo pipefail -c "$(documented "Without rights over the cluster" 2) --set controller.denyPrivateAddresses=true" >/dev/null
    eventually 90 "the controllers say what the definitions lack, and what to do" tell_what_definitions_lack
    before=$(controllers)
    equal "none of them is ready" "" "$(kubectl --namespace "$system" get deployment terrane-controller --output 'jsonpath={.status.readyReplicas}')"
    equal "or stands for election" "" "$(kubectl --namespace "$system" get lease terrane-controller --ignore-not-found --output name)"
    kubectl apply --server-side --force-conflicts --filename deploy/crds >/dev/null
    eventually 90 "they go on by themselves once the definitions are applied" available
    equal "without being started again" "$before" "$(controllers)"
}

# The Git server of the example, in a tenant's namespace.
serve_parted_code() {
    mkdir "$work/parted"
    cat >"$work/parted/going.tf" <<'EOF'
resource "terraform_data" "going" {
  provisioner "local-exec" {
    command = "for second in $(seq 10); do echo second $second; sleep 1; done"
  }
}
EOF
    serve_files payments "$work/parted" '{key: going.tf, path: going/main.tf}'
}

check_private_addresses() {
    serve_parted_code
    eventually 60 "a repository at a private address is refused, and says so" says payments tfr/check \
        '^False .*its host check-git\.payments\.svc has the address [0-9.]*, which is not a place for a repository'
}

bucket_answers() { curl --silent --output /dev/null "http://$bucket/"; }

# A certificate for a part of Terrane by an authority of its own, as a Secret: certify SECRET NAME
certify() {
    local place=$work/$1
    mkdir "$place"
    {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=check -keyout "$place/ca.key" -out "$place/ca.crt"
        echo "subjectAltName=DNS:$2" >"$place/names"
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" -keyout "$place/tls.key" -out "$place/request"
        openssl x509 -req -in "$place/request" -CA "$place/ca.crt" -CAkey "$place/ca.key" -CAcreateserial -days 2 -extfile "$place/names" -out "$place/tls.crt"
    } 2>"$work/openssl" || fail "there is no certificate: $(<"$work/openssl")"
    kubectl --namespace "$system" create secret generic "$1" --from-file "$place/tls.crt" --from-file "$place/tls.key" --from-file "$place/ca.crt" >/dev/null
}

tenants_in_parts() {
    local index
    for index in "${!PARTED[@]}"; do printf ' --set tenants[%d].namespace=%s' "$index" "${PARTED[$index]}"; done
}

# The Secrets and values of docs/install.md, with the bucket of a server of the machine.
check_bucket() {
    local before secret
    secret=$(openssl rand -hex 16)
    mkdir -p "$work/s3/objects/states" "$work/s3/metadata"
    serve env "ROOT_ACCESS_KEY=check" "ROOT_SECRET_KEY=$secret" versitygw --port "$bucket" --region eu-central-1 --quiet \
        posix --sidecar "$work/s3/metadata" "$work/s3/objects" >"$work/bucket.log" 2>&1
    eventually 30 "an S3 server of the machine answers" bucket_answers
    certify datastore-tls "terrane-datastore.$system.svc"
    certify server-tls "terrane-server.$system.svc"
    documented "Where states are" 1 | sed -e 's/_ID=…/_ID=check/' -e "s/_ACCESS_KEY=…/_ACCESS_KEY=$secret/" >"$work/documented"
    bash -euo pipefail "$work/documented" >/dev/null
    documented Certificates 3 >"$work/certificates.yaml"
    documented "Where states are" 2 | sed -e 's|BUCKET/PREFIX|states/check|' \
        -e "s|env: \[|&{name: AWS_ENDPOINT_URL, value: \"http://$bucket\"}, {name: AWS_ALLOW_HTTP, value: \"true\"}, |" >"$work/bucket.yaml"
    before=$(pods)
    # shellcheck disable=SC2046 # one word an argument
    helm upgrade terrane charts/terrane --namespace "$system" --reuse-values --values "$work/certificates.yaml" --values "$work/bucket.yaml" \
        --set controller.denyPrivateAddresses=false,controller.shards=4,controller.maxRunnerPods=2 $(tenants_in_parts) >/dev/null
    eventually 180 "two datastores work on a bucket, with keys and certificates of existing Secrets" replaced "$before"
    eventually 60 "the repository is read, now that private addresses may be" says payments tfr/check '^True '
}

# Who leads, a line for each part of the fleet.
leaders() {
    kubectl --namespace "$system" get lease terrane-controller terrane-controller-{1,2,3} \
        --output 'jsonpath={range .items[*]}{.spec.holderIdentity}{"\n"}{end}' | grep .
}
all_led() { (($(leaders | wc -l) == 4)); }
led_by_two() { all_led && (($(leaders | sort --unique | wc -l) == 2)); }
led_without() { all_led && ! leaders | grep --quiet --line-regexp --fixed-strings "$1"; }

# The most pods that worked at the same time, of what a watch has told: most_live FILE
most_live() {
    awk '$1 == "DELETED" || $3 ~ /^(Succeeded|Failed)$/ { delete live[$2]; next }
         { live[$2] = 1; if (length(live) > most) most = length(live) }
         END { print most + 0 }' "$1"
}

# Two applies are at work when one of the two datastores goes and one of the two controllers is killed.
check_parts() {
    local name before
    eventually 90 "two controllers lead the four parts of the fleet" led_by_two
    serve kubectl get pods --all-namespaces --selector terrane.dev/run-uid --watch --output-watch-events \
        --output 'jsonpath={.type} {.object.metadata.uid} {.object.status.phase}{"\n"}' >"$work/live"
    for name in "${PARTED[@]}"; do [[ $name == payments ]] || furnish_tenant "$name" payments; done
    for name in payments south; do make_layer going going "$name"; done
    for name in payments south; do eventually 90 "an apply is at work in $name" in_mid_apply "$name"; done
    for name in east north; do make_layer going going "$name"; done
    before=$(leader)
    kubectl --namespace "$system" delete --force --grace-period 0 "$(kubectl --namespace "$system" get pods \
        --selector app.kubernetes.io/component=datastore --output name | head --lines 1)" >/dev/null 2>&1
    signal "${before%%_*}" SIGKILL
    eventually 60 "the parts that a killed controller led are led by another" led_without "$before"
    for name in "${PARTED[@]}"; do
        eventually 120 "the layer of $name is applied" applied_in "$name" going
        equal "by one apply, with one attempt" "Succeeded 1 0 Succeeded" "$(applies going "$name")"
    done
    stop_serving
    equal "never were there more runner pods than maxRunnerPods, and once as many" 2 "$(most_live "$work/live")"
    eventually 60 "all parts are available again" available
    [[ -n $(find "$work/s3/objects/states/check" -type f -print -quit) ]] || fail "the bucket is empty"
    for name in payments south; do kubectl --namespace "$name" annotate terraformlayer going terrane.dev/sync=again >/dev/null; done
    for name in payments south; do eventually 90 "the state of $name is there: nothing is to be changed" nothing_to_do "$name"; done
}
nothing_to_do() {
    kubectl --namespace "$1" get terraformruns --output json | jq --exit-status \
        '[.items[] | select(.spec.trigger.kind == "manual" and .status.result.message == "No changes.")] != []'
}

# That each right is used is seen of an install with all kinds of work: see `check_rights`.
check_no_rights() {
    equal "the release has made nothing that belongs to the cluster" "" \
        "$(helm --namespace "$system" get manifest terrane | sed -n 's/^kind: \(Cluster.*\|CustomResource.*\|Namespace\|ValidatingAdmission.*\)$/\1/p')"
    kubectl get roles --all-namespaces --output json >"$work/roles.json"
    "$here/rights" "$audit" "$work/roles.json" refusals || fail "the Roles of the tenants are not enough"
    say "no part was refused anything by the Roles of the tenants' namespaces"
}

no_runners() { [[ -z $(kubectl get pods --all-namespaces --selector terrane.dev/run-uid --output name) ]]; }
leave_namespaced() {
    local name
    for name in "${PARTED[@]}"; do kubectl --namespace "$name" delete terraformlayer,terraformrepository --all --timeout 60s >/dev/null; done
    eventually 60 "no runner pod is left" no_runners
    documented "Removing it" 1 >"$work/documented"
    bash -euo pipefail "$work/documented" >/dev/null
    kubectl delete --filename deploy/administrator.yaml --timeout 60s >/dev/null
    kubectl delete namespace "$system" "${PARTED[@]}" --timeout 120s >/dev/null || fail "the namespaces do not go"
    stop_serving
    equal "nothing of it is left" "" "$(kubectl get customresourcedefinitions,validatingadmissionpolicies --selector app.kubernetes.io/part-of=terrane --output name)"
}
