# shellcheck shell=bash
# A Terraform whose code is an image: its runs are containers of that image, with what is in it and nothing of the runners' own. Read by `check`.

# write_workload DIRECTORY: what the scripts read by its absolute path is nowhere but in this image, and so is the shell that reads them.
write_workload() {
    shell_root "$1"
    mkdir -p "$1/app"
    echo "only here" >"$1/of-the-image"
    cat >"$1/app/main.tf" <<'EOF'
resource "terraform_data" "workload" {}
EOF
    cat >"$1/app/deploy" <<'EOF'
#!/bin/sh
set -eu
for path in /usr/bin/git /usr/local/bin/terrane /bin/bash; do
    [ ! -e "$path" ] || { echo "$path is there: this is the runners' own image"; exit 1; }
done
read -r word </of-the-image
echo written >/tmp/of-a-program
"$TERRANE_TOOL" apply -auto-approve -input=false
echo "{\"word\": \"$word\"}"
EOF
    cat >"$1/app/destroy" <<'EOF'
#!/bin/sh
set -eu
[ "$1" = -c ]
read -r word </of-the-image
"$TERRANE_TOOL" destroy -auto-approve -input=false
EOF
    chmod +x "$1/app/deploy" "$1/app/destroy"
}

inside_gives() {
    kubectl --namespace default get terraform/inside --output json |
        jq --exit-status --arg word "$1" '.status.state == "Completed" and .status.output.word == $word'
}

# As examples/Dockerfile makes it, with a shell of this machine for its base: push_sample
push_sample() {
    local files
    read -ra files < <(sed -n 's|^COPY \(.*\) \./$|\1|p' examples/Dockerfile)
    shell_root "$work/sample"
    mkdir -p "$work/sample/app"
    (cd examples/seeds/001 && cp "${files[@]}" "$work/sample/app")
    push_image alustan/infrastructure 1.0.0 "$work/sample" "$(sed -n 's/^WORKDIR //p' examples/Dockerfile)" "$(sed -n 's/^ENV //p' examples/Dockerfile)"
}

sample_gives() {
    kubectl --namespace default get terraform/staging-cluster --output json | jq --exit-status '
        .status.state == "Completed" and .status.output.vpc_cidr == "10.1.0.0/16"
        and .status.postDeployOutput.outputs.EC2[0].Region == "eu-central-1"'
}

# The manifest of examples/seeds/001 as it stands there, by the name that its image has at Docker Hub.
check_sample() {
    push_sample
    kubectl --namespace default apply --filename examples/seeds/001/workload.yaml >/dev/null
    eventually 180 "the sample workload is deployed from its image" sample_gives
    kubectl --namespace default delete terraform staging-cluster --timeout 180s >/dev/null || fail "the sample workload does not go"
    say "and destroyed by its script"
}

check_inside() {
    write_workload "$work/workload"
    push_image team/workload 1.0.0 "$work/workload" /app
    kubectl apply --filename - >/dev/null <<'EOF'
apiVersion: alustan.io/v1alpha1
kind: Terraform
metadata: {name: inside, namespace: default}
spec:
  scripts: {deploy: deploy, destroy: destroy -c}
  containerRegistry: {imageName: images.example/team/workload, semanticVersion: "~1.0.0"}
EOF
    eventually 180 "an image is deployed by what is in it" inside_gives "only here"
    kubectl --namespace default get terraformruns --output json | jq --exit-status \
        '[.items[] | select(.spec.layer.name == "inside")] | length == 2 and all(.spec.inImage and (.status.attempts | length == 1))' >/dev/null ||
        fail "plan and apply were not both in the image at their first attempt"
    kubectl --namespace default delete terraform inside --timeout 180s >/dev/null || fail "the Terraform does not go"
    say "and destroyed"
    check_sample
}
