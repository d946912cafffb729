# shellcheck shell=bash
# The images: what is in them, and that they run as the chart has them run. Read by `check`.

# Runs SCRIPT by SHELL in the image NAME, as a pod of the level `restricted`: image_says NAME PULL-POLICY SHELL SCRIPT
image_says() { image_runs "$1" "$2" "[$3, -c, '$4']"; }

# The builder's image has no shell, and its program is not where others look for one. It is made for root, which this level refuses.
builder_says_version() { image_runs "$1" "$2" "[/kaniko/lib/ld.so, --library-path, /kaniko/lib, /kaniko/terrane, --version]" "runAsUser: 65532, "; }

# image_runs NAME PULL-POLICY COMMAND [MORE]
image_runs() {
    local pod
    pod=image-$(md5sum <<<"$1" | cut -c1-8)
    cat <<EOF | kubectl apply --filename - >/dev/null
apiVersion: v1
kind: Pod
metadata: {name: $pod, namespace: images}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  securityContext: {${4:-}runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    image: $1
    imagePullPolicy: $2
    command: $3
    securityContext:
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
EOF
    eventually 120 "a pod of $1 ends well" ended_well "$pod"
    kubectl --namespace images logs "$pod" >"$work/said"
    cat "$work/said" >&2
}

ended_well() { [[ $(kubectl --namespace images get pod "$1" --output 'jsonpath={.status.phase}') == Succeeded ]]; }

start_registry() {
    cat >"$work/registry.yaml" <<EOF
version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: $work/registry}}
http: {addr: '$REGISTRY'}
EOF
    serve docker-registry serve "$work/registry.yaml" >"$work/registry.log" 2>&1
    eventually 30 "a registry of the machine answers" curl --silent --fail "http://$REGISTRY/v2/"
}

have_registry() { curl --silent --fail --output /dev/null "http://$REGISTRY/v2/" || start_registry; }

login=jane:open-sesame
# What `htpasswd -B` makes of it.
# shellcheck disable=SC2016 # no variable is meant
hashed='jane:$2b$04$afPQqIP99QwAMDU9XzfO/OXH.MgqrIt66uvMekYCjxsq1s5tISZcK'

# Asks who is there, and has the images of $REGISTRY.
have_guarded_registry() {
    ! asked_who || return 0
    have_registry
    echo "$hashed" >"$work/htpasswd"
    sed -e "s/addr: .*/addr: '$GUARDED_REGISTRY'}/" "$work/registry.yaml" >"$work/guarded.yaml"
    echo "auth: {htpasswd: {realm: check, path: $work/htpasswd}}" >>"$work/guarded.yaml"
    serve docker-registry serve "$work/guarded.yaml" >"$work/guarded.log" 2>&1
    eventually 30 "a registry that asks who is there answers" asked_who
}
asked_who() { [[ $(curl --silent --output /dev/null --write-out '%{http_code}' "http://$GUARDED_REGISTRY/v2/") == 401 ]]; }
# A Docker config.json with that login for HOST: login_at HOST PASSWORD
login_at() {
    jq --null-input --compact-output --arg host "$1" --arg user "${login%%:*}" --arg password "$2" \
        '{auths: {($host): {username: $user, password: $password}}}'
}

# Images and chart are in that registry.
have_pushed() {
    have_registry
    [[ -e $work/pushed ]] || PLAIN_HTTP=1 tools/push "$REGISTRY" "$images" >"$work/pushed"
}

# upload REPOSITORY FILE: prints its digest
upload() {
    local digest place
    digest=sha256:$(sha256sum "$2" | cut -d' ' -f1)
    place=$(curl --silent --fail --request POST --dump-header - --output /dev/null "http://$REGISTRY/v2/$1/blobs/uploads/" |
        tr -d '\r' | sed -n 's/^[Ll]ocation: //p')
    curl --silent --fail --request PUT --header 'Content-Type: application/octet-stream' --data-binary "@$2" \
        "$place&digest=$digest" >/dev/null
    echo "$digest"
}

# The root of an image: a shell, and the libraries that this needs. shell_root DIRECTORY
shell_root() {
    local file
    mkdir -p "$1/bin"
    cp --dereference "$(command -v dash)" "$1/bin/sh"
    for file in $(ldd "$1/bin/sh" | grep --only-matching '/[^ ]*'); do install -D "$(realpath "$file")" "$1$file"; done
}

# An image of that root: push_image REPOSITORY TAG DIRECTORY [WORKING-DIRECTORY [NAME=VALUE]]
push_image() {
    local layer config
    tar --create --file "$work/image.tar" --owner 0 --group 0 --numeric-owner --directory "$3" .
    layer=$(upload "$1" "$work/image.tar")
    printf '{"architecture":"%s","os":"linux","config":{%s},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
        "$(dpkg --print-architecture)" "${4:+\"WorkingDir\":\"$4\"}${5:+,\"Env\":[\"$5\"]}" "$layer" >"$work/image.json"
    config=$(upload "$1" "$work/image.json")
    printf '{"schemaVersion":2,"mediaType":"%s","config":{"mediaType":"%s","digest":"%s","size":%s},"layers":[{"mediaType":"%s","digest":"%s","size":%s}]}' \
        application/vnd.oci.image.manifest.v1+json application/vnd.oci.image.config.v1+json "$config" "$(stat --format %s "$work/image.json")" \
        application/vnd.oci.image.layer.v1.tar "$layer" "$(stat --format %s "$work/image.tar")" >"$work/image.manifest"
    curl --silent --fail --request PUT --header 'Content-Type: application/vnd.oci.image.manifest.v1+json' \
        --data-binary "@$work/image.manifest" "http://$REGISTRY/v2/$1/manifests/$2" >/dev/null
}

# By its digest, and the node has nothing of it before the pod; afterwards it has it by the name that the chart's defaults have.
# pulled NAME DIGEST
pulled() {
    local remote=$REGISTRY/${1##*/}
    remote=${remote%:*}@$2
    "$cluster" enter ctr --namespace k8s.io images remove --sync "$1" >/dev/null
    case $1 in
    *-builder:*) builder_says_version "$remote" Always ;;
    *) image_says "$remote" Always sh "terrane --version" ;;
    esac
    equal "$1 runs as pulled from a registry by its digest" "terrane ${1##*:}" "$(<"$work/said")"
    "$cluster" enter ctr --namespace k8s.io images tag "$remote" "$1" >/dev/null
}

# The digest of an image's manifest: digest_of ARCHIVE
digest_of() { tar --extract --to-stdout --file "$1" index.json | sed 's/.*"digest":"\([^"]*\)".*/\1/'; }

# Of the same program once more, to compare; the others differ by layers that are made in the same way.
check_made_again() {
    local archive again
    cargo xtask image --binary "${TERRANE_PROGRAM:?say which program, as \`make test-cluster\` does}" --out "$work/again" \
        --debs "$(dirname "$(tools/setup path)")/debs" --or-newest-packages >/dev/null
    again=("$work"/again/*.tar)
    archive=$images/${again[0]##*/}
    equal "the same program makes the same image again" "$(digest_of "$archive")" "$(digest_of "${again[0]}")"
    rm -r "$work/again"
}

# What is in an image, beside it: has_parts_list ARCHIVE DIGEST
has_parts_list() {
    jq --exit-status --arg digest "${2#sha256:}" \
        '.bomFormat == "CycloneDX" and .metadata.component.hashes[0].content == $digest and ([.components[].name] | index("libc6") and index("tokio"))' \
        "${1%.tar}.cdx.json" >/dev/null || fail "the list of what is in $1 is not beside it, or of another image"
}

check_images() {
    local archive archives name version digest
    kubectl create namespace images >/dev/null
    kubectl label namespace images pod-security.kubernetes.io/enforce=restricted >/dev/null
    eventually 60 "a namespace has its account" kubectl --namespace images get serviceaccount default
    check_made_again
    have_pushed
    archives=("$images"/*.tar)
    equal "images and chart are pushed" "$((${#archives[@]} + 1))" "$(grep --count "$REGISTRY/" "$work/pushed")"
    for archive in "$images"/*.tar; do
        name=$(tar --extract --to-stdout --file "$archive" manifest.json | sed 's/.*"RepoTags":\["\([^"]*\)".*/\1/')
        version=${name##*:}
        digest=$(digest_of "$archive")
        has_parts_list "$archive" "$digest"
        equal "the node has $name by the digest of its archive" "$digest" \
            "$("$cluster" enter ctr --namespace k8s.io images list "name==$name" | awk 'NR == 2 { print $3 }')"
        case $name in
        *-builder:*)
            builder_says_version "$name" Never
            equal "$name runs terrane by its own loader" "terrane $version" "$(<"$work/said")"
            pulled "$name" "$digest"
            continue
            ;;
        *-runner:*)
            image_says "$name" Never bash "set -e; terrane --version; git --version; ssh -V 2>&1; { terraform version || tofu version; } | head -n1; id -u; ! touch /file 2>&1"
            grep --quiet --line-regexp 65532 "$work/said" || fail "$name does not run as its own user"
            grep --quiet --extended-regexp '^(Terraform|OpenTofu) v' "$work/said" || fail "$name has no tool"
            ;;
        *)
            image_says "$name" Never sh "set -e; terrane --version; git --version; ssh -V 2>&1; for scheme in ssh https; do git ls-remote \$scheme://127.0.0.1:1/nothing 2>&1 || true; done"
            # Nobody listens there; what counts is who says so.
            grep --quiet '^ssh: connect to host 127.0.0.1 port 1: Connection refused' "$work/said" || fail "git of $name finds no ssh"
            grep --quiet "unable to access 'https://127.0.0.1:1/nothing/': Failed to connect" "$work/said" || fail "git of $name knows no https"
            ;;
        esac
        grep --quiet --line-regexp "terrane $version" "$work/said" || fail "$name does not run terrane $version"
        grep --quiet '^git version' "$work/said" || fail "$name has no git"
        grep --quiet '^OpenSSH' "$work/said" || fail "$name has no ssh"
        say "$name runs terrane, git and ssh with a read-only root"
        pulled "$name" "$digest"
    done
    kubectl delete namespace images --wait=false >/dev/null
}
