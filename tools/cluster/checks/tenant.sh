# shellcheck shell=bash
# What a tenant's namespace gives its runs: credentials for clouds, the runners' image from a registry that asks who pulls, and a pod made as
# its layer asks for it. Read by `check`.

# Looks around in its pod.
write_cloud() {
    cat >"$work/code/cloud.tf" <<'EOF'
resource "terraform_data" "cloud" {
  provisioner "local-exec" {
    command = <<-SH
      set -eu
      missing() { echo "$1"; exit 1; }
      [ "$AWS_SHARED_CREDENTIALS_FILE" = /etc/terrane/credentials/credentials ] || missing "the tools of AWS are not told of their file"
      case "$(cat "$AWS_SHARED_CREDENTIALS_FILE")" in *"aws_secret_access_key = not-a-real-key"*) ;; *) missing "the file is another one" ;; esac
      [ "$ARM_CLIENT_SECRET" = not-a-real-secret ] || missing "a variable of the environment is missing"
      echo kept >/scratch/file || missing "a volume that was asked for cannot be written"
      case " $(id -G) " in *" 4711 "*) ;; *) missing "a group that was asked for is missing: $(id -G)" ;; esac
      limit=unknown
      for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do [ ! -r "$file" ] || limit=$(cat "$file"); done
      [ "$limit" = 805306368 ] || missing "the limit of memory is $limit"
    SH
  }
}
EOF
}

# The runners' image where nobody has it without a login: options of helm, one word each.
login_options() {
    printf -- ' --set=containerRegistrySecret=%s --set=runner.image.repository=%s/terrane-runner' \
        "$(login_at "$GUARDED_REGISTRY" "${login#*:}" | base64 --wrap 0)" "$GUARDED_REGISTRY"
}

# The Secrets by the commands of docs/install.md, from a home directory.
give_credentials() {
    mkdir -p "$work/home/.aws"
    printf '[default]\naws_access_key_id = not-a-real-id\naws_secret_access_key = not-a-real-key\n' >"$work/home/.aws/credentials"
    documented Tenants 3 | sed 's/…$/not-a-real-secret/' >"$work/documented"
    env -C "$work/home" bash -euo pipefail "$work/documented" >/dev/null
}

check_tenant() {
    give_credentials
    furnish_tenant payments
    # Only its own runs may work on the node now.
    kubectl label node "$NODE_NAME" pool=terraform >/dev/null
    kubectl taint node "$NODE_NAME" example.org/terraform=only:NoSchedule >/dev/null
    make_layer cloud cloud payments '  remediationStrategy: {autoApply: true}
  overrideRunnerSpec:
    resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {memory: 768Mi}}
    nodeSelector: {pool: terraform}
    tolerations: [{key: example.org/terraform, operator: Exists, effect: NoSchedule}]
    volumes: [{name: scratch, emptyDir: {sizeLimit: 16Mi}}]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
    podSecurityContext: {supplementalGroups: [4711]}'
    declare_unhurried
    eventually 120 "a tenant's layer finds its credentials, and the pod that it asked for" applied_in payments cloud
    kubectl taint node "$NODE_NAME" example.org/terraform- >/dev/null
    equal "the runners' image was pulled with a login" "$GUARDED_REGISTRY/terrane-runner:$(chart_version)" \
        "$("$cluster" enter ctr --namespace k8s.io images list --quiet "name==$GUARDED_REGISTRY/terrane-runner:$(chart_version)")"
    eventually 60 "a repository without an interval of its own is looked at each syncInterval" looked_at unhurried 4
    kubectl --namespace payments delete terraformlayer,terraformrepository --all --timeout 60s >/dev/null
}
applied_in() { kubectl --namespace "$1" wait "terraformlayer/$2" --for condition=Ready --timeout 1s; }

# No layer and no other repository has its Secret, which is read at each look and otherwise not.
declare_unhurried() {
    kubectl --namespace default get secret check-git --output json | jq '{apiVersion, kind, data, metadata: {name: "unhurried"}}' |
        kubectl --namespace payments apply --filename - >/dev/null
    kubectl --namespace payments apply --filename - >/dev/null <<'EOF'
apiVersion: terrane.dev/v1alpha1
kind: TerraformRepository
metadata: {name: unhurried}
spec: {repository: {url: https://check-git.default.svc/code.git, credentials: {secretName: unhurried}}}
EOF
}
looked_at() {
    (($(jq --compact-output --arg name "$1" 'select(.verb == "get" and .objectRef.resource == "secrets" and .objectRef.name == $name)' "$audit" | wc -l) >= $2))
}
