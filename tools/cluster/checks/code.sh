# shellcheck shell=bash
# What later topics work with: a second Git server with the code of their layers, and a person. Read by `check`.
# A changed ConfigMap reaches a pod only after a minute or so: the code of every topic is there from the start.

# The world that the layer `checked` looks at: a file that the machine serves. set_world WEATHER
set_world() {
    cat >"$work/world/state.draft" <<EOF
{"version":4,"terraform_version":"1.0.0","serial":1,"lineage":"world","resources":[],
 "outputs":{"weather":{"value":"$1","type":"string"}}}
EOF
    mv "$work/world/state.draft" "$work/world/state.json"
}
world_port() { sed -n 's/^Starting to serve on .*:\([0-9]*\)$/\1/p' "$work/proxy" | grep .; }

# Looks around in its pod, and depends on that world.
write_checked() {
    cat >"$work/code/checked.tf" <<EOF
data "terraform_remote_state" "world" {
  backend = "http"
  config  = { address = "http://$HOST_ADDRESS:$(world_port)/world/state.json" }
}

resource "terraform_data" "checked" {
  input = data.terraform_remote_state.world.outputs.weather

  # A 401 makes git ask for a user name, anything else does not: the token is worth nothing to the API.
  provisioner "local-exec" {
    command = <<-SH
      set -eu
      [ "\$(id -u)" = 65532 ] || { echo "another user"; exit 1; }
      [ ! -e /var/run/secrets ] || { echo "a Kubernetes token"; exit 1; }
      ! touch /file 2>/dev/null || { echo "the root can be written"; exit 1; }
      export GIT_TERMINAL_PROMPT=0 GIT_SSL_NO_VERIFY=1 GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=http.extraHeader
      export GIT_CONFIG_VALUE_0="Authorization: Bearer \$(cat /var/run/terrane/token)"
      said=\$(git ls-remote https://kubernetes.default.svc/api 2>&1) || true
      case \$said in
      *"could not read Username"*) ;;
      *) echo "the API answered the runner: \$said"; exit 1 ;;
      esac
    SH
  }
}

output "weather" {
  value = terraform_data.checked.output
}

output "has_kubernetes_token" {
  value = fileexists("/var/run/secrets/kubernetes.io/serviceaccount/token")
}
EOF
}

# An apply that takes a while, and says how far it is.
write_slow() {
    cat >"$work/code/slow.tf" <<'EOF'
resource "terraform_data" "slow" {
  provisioner "local-exec" {
    command = "for second in $(seq 20); do echo second $second; sleep 1; done"
  }
}
EOF
}

write_quick() {
    cat >"$work/code/quick.tf" <<'EOF'
resource "terraform_data" "quick" {}
EOF
}

serve_code() {
    local items layer
    mkdir "$work/world" "$work/code"
    set_world sunny
    serve kubectl proxy --address "$HOST_ADDRESS" --port 0 --accept-hosts '.*' --reject-paths '.*' --www "$work/world" --www-prefix /world/ \
        >"$work/proxy" 2>&1
    eventually 30 "a server of the machine listens" world_port
    write_checked
    write_slow
    write_quick
    write_cloud
    # A state belongs to a place in the code, so each layer has one of its own.
    items='{key: checked.tf, path: checked/main.tf}, {key: cloud.tf, path: cloud/main.tf}'
    for layer in slow-killed slow-drained slow-lost slow-paused; do items+=", {key: slow.tf, path: $layer/main.tf}"; done
    for layer in "${GOING[@]}"; do items+=", {key: slow.tf, path: fault-$layer/main.tf}"; done
    for layer in "${FAULTS[@]}"; do items+=", {key: quick.tf, path: fault-$layer/main.tf}"; done
    serve_files default "$work/code" "$items"
}

# The Git server of the example with other files, and the repository `check` of it: serve_files NAMESPACE DIRECTORY ITEMS
# ITEMS says, as a volume does, at which path of the code a file of the directory is.
serve_files() {
    kubectl --namespace "$1" create configmap check-code --from-file "$2" >/dev/null
    # Found by its URL, as one Secret for many repositories is.
    kubectl --namespace "$1" create secret generic check-git --type terrane.dev/repository \
        --from-literal "url=https://check-git.$1.svc" >/dev/null
    sed -e 's/quickstart/check/g' -e "s/namespace: default/namespace: $1/" -e "s/check-git\.default/check-git.$1/" \
        -e "s/metadata.name: default/metadata.name: $1/" -e "s|items: .*|items: [$3]|" examples/quickstart/2-git-server.yaml |
        kubectl apply --filename - >/dev/null 2>&1
    kubectl apply --filename - >/dev/null <<EOF
apiVersion: terrane.dev/v1alpha1
kind: TerraformRepository
metadata: {name: check, namespace: $1}
spec:
  repository: {url: https://check-git.$1.svc/code.git}
  pollInterval: 10s
EOF
    kubectl --namespace "$1" rollout status deployment/check-git --timeout 60s >/dev/null
}

# make_layer NAME PATH [NAMESPACE] [MORE OF THE SPEC, IN YAML]
make_layer() {
    kubectl apply --filename - >/dev/null <<EOF
apiVersion: terrane.dev/v1alpha1
kind: TerraformLayer
metadata: {name: $1, namespace: ${3:-default}}
spec:
  repository: {name: check}
  branch: main
  path: $2
${4:-  remediationStrategy: {autoApply: true\}}
EOF
}

# Somebody with the rights of an operator and of a keeper of states, in a pod, so that the command line works as on a desk.
hire_alice() {
    kubectl apply --filename - >/dev/null <<EOF
apiVersion: v1
kind: ServiceAccount
metadata: {name: alice, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: alice, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: terrane-state-keeper}
subjects: [{kind: ServiceAccount, name: alice, namespace: default}]
---
apiVersion: v1
kind: Pod
metadata: {name: alice, namespace: default}
spec:
  serviceAccountName: alice
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: desk
    image: $(sed -n 's/.*--runner-image=//p' < <(helm --namespace "$system" get manifest terrane))
    command: [sleep, infinity]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
EOF
    kubectl --namespace default wait pod/alice --for condition=Ready --timeout 60s >/dev/null
}
alice() { kubectl --namespace default exec alice -- terrane "$@"; }
