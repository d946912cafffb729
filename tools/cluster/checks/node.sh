# shellcheck shell=bash
# The node itself: pods, Services, DNS, volumes, and its parts killed. Read by `check`.

check_node() {
    "$cluster" load-program "$image" "$(command -v kubectl)"
    prepare_namespace >/dev/null
    check_pods
    check_network
    check_restarts
    check_storage_goes
}

image=terrane.dev/check/kubectl:1

# The pod that most checks run: as the level `restricted` demands it, with the API reached by name.
# pod NAME ARGUMENTS, a YAML list
pod() {
    cat <<EOF
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: check, labels: {app: $1}}
spec:
  restartPolicy: Never
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000
    fsGroup: 1000
    seccompProfile: {type: RuntimeDefault}
  containers:
  - name: main
    image: $image
    imagePullPolicy: Never
    args: $2
    env: [{name: KUBECONFIG, value: /config/kubeconfig}]
    securityContext:
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
    volumeMounts:
    - {name: config, mountPath: /config}
    - {name: data, mountPath: /data}
  volumes:
  - {name: config, configMap: {name: kubeconfig}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
EOF
}

prepare_namespace() {
    kubectl create namespace check
    kubectl label namespace check pod-security.kubernetes.io/enforce=restricted
    kubectl create rolebinding view --clusterrole view --serviceaccount check:default --namespace check
    kubectl apply --filename - <<EOF
apiVersion: v1
kind: ConfigMap
metadata: {name: kubeconfig, namespace: check}
data:
  kubeconfig: |
    apiVersion: v1
    kind: Config
    current-context: pod
    contexts: [{name: pod, context: {cluster: api, user: pod, namespace: check}}]
    clusters:
    - name: api
      cluster:
        server: https://kubernetes.default.svc.cluster.local
        certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    users:
    - {name: pod, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: check}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
EOF
    eventually 60 "a namespace has its account" kubectl --namespace check get serviceaccount default
}

phase_is() { [[ $(kubectl --namespace check get pod "$1" --output 'jsonpath={.status.phase}') == "$2" ]]; }
exit_code() {
    kubectl --namespace check get pod "$1" --output 'jsonpath={.status.containerStatuses[0].state.terminated.exitCode}'
}

check_pods() {
    pod reader '[get, configmaps, --output, name, --cache-dir, /data/cache]' | kubectl apply --filename - >/dev/null
    eventually 90 "a restricted pod reaches the API by its name and Service, and writes to a claimed volume" phase_is reader Succeeded
    equal "its log is read" "configmap/kube-root-ca.crt configmap/kubeconfig" "$(kubectl --namespace check logs reader | xargs)"
    volume=$(kubectl --namespace check get persistentvolumeclaim data --output 'jsonpath={.spec.volumeName}')
    [[ -n $(find "$STATE/lib/cluster/volumes/$volume/cache" -type f -uid 1000 -gid 1000 | head -n1) ]] ||
        fail "the volume $volume has nothing of the pod"
    say "the volume holds what the pod wrote, as its user and fsGroup"

    pod failing '[get, nothing-of-this-name, --cache-dir, /data/cache]' | kubectl apply --filename - >/dev/null
    eventually 90 "a failing pod fails" phase_is failing Failed
    equal "its exit code comes back" 1 "$(exit_code failing)"
    pod privileged '[version]' | sed '/runAsNonRoot/d; s/runAsUser: 1000/runAsUser: 0/' >"$work/privileged.yaml"
    ! kubectl apply --filename "$work/privileged.yaml" 2>"$work/refused" || fail "a pod of root was let into a restricted namespace"
    grep -q 'violates PodSecurity "restricted:latest"' "$work/refused" || fail "unexpected refusal: $(<"$work/refused")"
    say "a pod that may be root is refused where the namespace says so"
}

node_port_answers() {
    curl --silent --show-error --fail --max-time 5 \
        "http://$NODE_ADDRESS:$(kubectl --namespace check get service proxy --output 'jsonpath={.spec.ports[0].nodePort}')/version" |
        grep --quiet "\"v$KUBERNETES_VERSION\""
}
host_port() { sed -n 's/^Starting to serve on .*:\([0-9]*\)$/\1/p' "$work/proxy" | grep .; }

check_network() {
    local port
    pod proxy "[proxy, --address, 0.0.0.0, --port, '8001', --accept-hosts, '.*']" | kubectl apply --filename - >/dev/null
    kubectl --namespace check expose pod proxy --type NodePort --port 80 --target-port 8001 >/dev/null
    eventually 90 "a Service answers to the machine" node_port_answers
    equal "a command runs in a pod" "Client Version: v$KUBERNETES_VERSION" \
        "$(kubectl --namespace check exec proxy -- /kubectl version --client | head -n1)"
    pod visitor "[get, --raw, /version, --server, 'http://proxy.check.svc', --cache-dir, /data/cache]" | kubectl apply --filename - >/dev/null
    eventually 90 "a Service answers to a pod by its name" phase_is visitor Succeeded

    # A server outside of the cluster: Git and registries of tests are such.
    serve kubectl proxy --address "$HOST_ADDRESS" --port 0 --accept-hosts '.*' >"$work/proxy" 2>&1
    eventually 30 "a server of the machine listens" host_port
    port=$(host_port)
    pod outsider "[get, --raw, /version, --server, 'http://$HOST_ADDRESS:$port', --cache-dir, /data/cache]" | kubectl apply --filename - >/dev/null
    eventually 90 "a pod reaches a server of the machine" phase_is outsider Succeeded
    stop_serving
}

volume_is_gone() { [[ ! -e $STATE/lib/cluster/volumes/$1 ]] && ! kubectl get persistentvolume "$1" 2>/dev/null; }

restarted() { [[ $2 != "$(<"$STATE/run/terrane/$1.pid")" ]]; }

check_restarts() {
    local part pid
    for part in etcd kube-apiserver kubelet containerd; do
        pid=$(<"$STATE/run/terrane/$part.pid")
        "$cluster" enter kill -KILL "$pid"
        eventually 60 "a killed $part is started again" restarted "$part" "$pid"
    done
    eventually 120 "objects are there after it" kubectl --namespace check get configmap kubeconfig
    pod after '[get, configmaps, --cache-dir, /data/cache]' | kubectl apply --filename - >/dev/null
    eventually 120 "a pod runs after it" phase_is after Succeeded
}

check_storage_goes() {
    kubectl delete namespace check --wait=true --timeout=120s >/dev/null
    eventually 60 "the volume goes with its claim" volume_is_gone "$volume"
}
