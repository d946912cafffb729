# shellcheck shell=bash
# Images that are built in the cluster: the real kaniko executes the Dockerfile of a repository, in a namespace of builds alone. Read by `check`.

builds=terrane-builds
image_host=registry.example.org
registry_says() { curl --silent --fail --user "$login" "http://$GUARDED_REGISTRY/v2/$1" "${@:2}"; }

# An image with a shell and nothing else: push_base REPOSITORY TAG
push_base() {
    shell_root "$work/base"
    push_image "$1" "$2" "$work/base"
}

# write_build WORD: the code says what a RUN line made, and this word. The RUN line shows what every process was started with.
write_build() {
    mkdir -p "$work/built"
    cat >"$work/built/main.tf" <<EOF
output "made" { value = trimspace(file("\${path.module}/../made")) }
output "word" { value = "$1" }
EOF
    cat >"$work/built/Dockerfile" <<EOF
FROM $image_host/team/base:1
RUN echo "made by a RUN line" >/made; for file in /proc/[0-9]*/cmdline; do while IFS= read -r line || [ -n "\$line" ]; do echo "process: \$line"; done <"\$file"; done; true
WORKDIR /workspace
COPY main.tf .
EOF
    kubectl --namespace default create configmap builds-code --from-file "$work/built" --dry-run=client --output yaml |
        kubectl apply --server-side --force-conflicts --filename - >/dev/null
}

# write_login PASSWORD
write_login() {
    local config
    config=$(login_at "$image_host" "$1")
    kubectl --namespace default create secret generic builds-login --from-literal "cred=$config" --from-literal "other=not-a-builders-business" \
        --dry-run=client --output yaml | kubectl apply --server-side --force-conflicts --filename - >/dev/null
}

built_tells() { [[ $(kubectl --namespace default get terraform/built --output 'jsonpath={.status.conditions[?(@.type=="ImageBuilt")].message}') == *"$1"* ]]; }
built_gives() {
    kubectl --namespace default get terraform/built --output json |
        jq --exit-status --arg word "$1" '.status.state == "Completed" and .status.output.word == $word and .status.output.made == "made by a RUN line"'
}
# The builds of a layer that succeeded, newest last, one a line: builds_of LAYER
builds_of() {
    kubectl --namespace default get terraformruns --output json | jq --compact-output --arg layer "$1" \
        '[.items[] | select(.spec.layer.name == $layer and .spec.action == "build" and .status.state == "Succeeded")] | sort_by(.metadata.creationTimestamp)[]'
}
none_in_builds() { [[ -z $(kubectl --namespace "$builds" get pods,secrets --selector terrane.dev/run-uid --output name) ]]; }

check_builds() {
    enable_builds
    check_builds_namespace
    check_build
    check_same_build
    check_cache
    check_builds_end
}

enable_builds() {
    local before
    have_guarded_registry
    push_base team/base 1
    write_login close-barley
    write_build first
    kubectl --namespace default create secret generic builds-git --type terrane.dev/repository \
        --from-literal url=https://builds-git.default.svc >/dev/null
    sed -e 's/quickstart/builds/g' -e 's|items: .*|items: [{key: main.tf, path: main.tf}, {key: Dockerfile, path: Dockerfile}]|' \
        examples/quickstart/2-git-server.yaml | kubectl apply --filename - >/dev/null 2>&1
    kubectl --namespace default rollout status deployment/builds-git --timeout 60s >/dev/null
    before=$(pods)
    # Pods pull without a login here: see check_same_build.
    helm upgrade terrane charts/terrane --namespace "$system" --reuse-values --set builds.enabled=true,builds.builder=kaniko,syncInterval=10 \
        --set containerRegistrySecret=,runner.image.repository=terrane.dev/terrane-runner \
        --set "controller.registryRewrites[0]=$image_host=http://$GUARDED_REGISTRY" >/dev/null
    eventually 180 "helm upgrade: images are built" replaced "$before"
}

# Nobody but the controller makes a pod there that the datastore would take for a build's.
check_builds_namespace() {
    equal "the namespace of builds has the level baseline" baseline \
        "$(kubectl get namespace "$builds" --output 'jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}')"
    ! kubectl apply --filename - 2>"$work/refused" <<EOF || fail "a pod that says it is a build's was taken"
apiVersion: v1
kind: Pod
metadata: {name: forged, namespace: $builds, labels: {terrane.dev/run-uid: abc, terrane.dev/attempt: "0", terrane.dev/run-namespace: default}}
spec: {serviceAccountName: terrane-builder, containers: [{name: main, image: $PAUSE_IMAGE}]}
EOF
    grep --quiet "only Terrane's controller makes pods with the label" "$work/refused" || fail "other words: $(<"$work/refused")"
    say "a pod that says it is a build's is refused"
    equal "builders may read no Secret" no \
        "$(kubectl auth can-i get secrets --as "system:serviceaccount:$builds:terrane-builder" --namespace "$builds" 2>/dev/null || true)"
}

check_build() {
    local run name digest
    kubectl apply --server-side --filename - >/dev/null <<EOF
apiVersion: alustan.io/v1alpha1
kind: Terraform
metadata: {name: built, namespace: default}
spec:
  gitRepo: {url: https://builds-git.default.svc/code.git, branch: main}
  containerRegistry: {imageName: $image_host/team/code, secretRef: {name: builds-login, key: cred}}
EOF
    eventually 180 "a wrong login is told on the Terraform" built_tells "its registry refuses the credentials"
    equal "nothing was pushed" "" "$(registry_says team/code/tags/list 2>/dev/null || true)"
    write_login "${login#*:}"
    kubectl --namespace default annotate terraformlayer built --overwrite "terrane.dev/sync=login" >/dev/null
    eventually 300 "a commit is built by kaniko, and deployed from its image" built_gives first
    run=$(builds_of built | tail --lines 1)
    name=$(jq --raw-output '.status.attempts[-1].podName' <<<"$run")
    equal "the pod was in the namespace of builds" "$builds" "$(jq --raw-output '.status.attempts[-1].podNamespace' <<<"$run")"
    equal "and in no other" "$builds" "$(jq --raw-output --arg name "$name" \
        'select(.verb == "create" and .objectRef.resource == "pods" and .objectRef.name == $name) | .objectRef.namespace' "$audit" | sort --unique)"
    digest=$(registry_says "team/code/manifests/$(jq --raw-output '.spec.build.tag' <<<"$run")" --head \
        --header 'Accept: application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json' |
        tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: //p')
    equal "the digest on record is the registry's" "$digest" "$(jq --raw-output '.status.result.image.digest' <<<"$run")"
    alice logs "run/$(jq --raw-output '.metadata.name' <<<"$run")" >"$work/said"
    grep --quiet 'process: /kaniko/executor.*--destination=' "$work/said" || { cat "$work/said" >&2; fail "the RUN line does not show kaniko"; }
    ! grep --quiet --fixed-strings -e "${login#*:}" -e "$(base64 <<<"$login" | cut -c1-20)" "$work/said" || fail "the log, or an argument, holds a secret"
    say "no argument and no line of the log holds the password"
    eventually 60 "nothing is left in the namespace of builds" none_in_builds
}

# A layer with the same inputs: the tag is made of them.
check_same_build() {
    local first
    first=$(builds_of built | tail --lines 1 | jq --raw-output '.status.result.image.digest')
    kubectl apply --filename - >/dev/null <<EOF
apiVersion: terrane.dev/v1alpha1
kind: TerraformLayer
metadata: {name: built-too, namespace: default}
spec:
  repository: {name: built}
  branch: main
  path: .
  workspace: too
  build: {name: $image_host/team/code, credentials: {secretName: builds-login, key: cred}}
  remediationStrategy: {autoApply: true}
EOF
    # The node has no login for that registry, so that plans go on without the image after two minutes.
    eventually 300 "another layer works on the same image" ready built-too
    equal "which was not built again" "$first" "$(builds_of built-too | jq --raw-output '.status.result.image.digest')"
    alice logs "run/$(builds_of built-too | jq --raw-output '.metadata.name')" >"$work/said"
    grep --quiet 'is there already; nothing was pushed' "$work/said" || fail "its log does not say so: $(<"$work/said")"
    ! grep --quiet 'process: ' "$work/said" || fail "the Dockerfile was executed again"
    kubectl --namespace default delete terraformlayer built-too --timeout 60s >/dev/null
}

check_cache() {
    write_build second
    eventually 300 "a new commit is built and deployed" built_gives second
    alice logs "run/$(builds_of built | tail --lines 1 | jq --raw-output '.metadata.name')" >"$work/said"
    grep --quiet 'Using caching version of cmd: RUN' "$work/said" || fail "the RUN line's layer was not taken from before: $(<"$work/said")"
    ! grep --quiet 'process: /' "$work/said" || fail "the RUN line was executed again"
    registry_says team/code/cache/tags/list | jq --exit-status '.tags | length > 0' >/dev/null || fail "the registry keeps no layers between builds"
    say "the layer of its RUN line is that of the build before"
}

check_builds_end() {
    kubectl --namespace default delete terraform built --timeout 120s >/dev/null || fail "the Terraform does not go"
    eventually 60 "nothing is left in the namespace of builds" none_in_builds
    equal "no part was refused anything there" "" "$(jq --raw-output --arg namespace "$builds" \
        'select(.objectRef.namespace == $namespace and .responseStatus.code == 403 and (.user.username | startswith("system:serviceaccount:terrane-system:")))
         | .user.username + " " + .verb + " " + .objectRef.resource' "$audit" | sort --unique)"
    kubectl --namespace default delete secret builds-login builds-git >/dev/null
}
