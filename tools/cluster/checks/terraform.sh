# shellcheck shell=bash
# A Terraform: a workload in one object, by scripts of its own, which is destroyed before it goes. Read by `check`.

# terraform_is STATE
terraform_is() { [[ $(kubectl --namespace default get terraform/workload --output 'jsonpath={.status.state}') == "$1" ]]; }
# terraform_gives OUTPUT VALUE
terraform_gives() { terraform_is Completed && [[ $(kubectl --namespace default get terraform/workload --output "jsonpath={.status.output.$1}") == "$2" ]]; }
# terraform_reads URL
terraform_reads() { [[ $(kubectl --namespace default get terraformrepository/workload --output 'jsonpath={.spec.repository.url}') == "$1" ]]; }

# terraform_tells PATH VALUE
terraform_tells() { [[ $(kubectl --namespace default get terraform/workload --output "jsonpath={.status.$1}") == "$2" ]]; }

# An Ingress of another namespace, and what leads to Argo CD; neither is anybody's here.
surroundings() {
    cat <<YAML
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop, namespace: kube-public}
spec:
  tls: [{hosts: [shop.example]}]
  rules:
    - {host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: shop, port: {number: 80}}}}]}}
---
apiVersion: v1
kind: Service
metadata: {name: argocd-server, namespace: kube-public, labels: {app.kubernetes.io/name: argocd-server}}
spec: {ports: [{port: 443}]}
YAML
}

# terraform_manifest GREETING: the directory stands behind the repository in its URL, and the login is found by that URL.
terraform_manifest() {
    cat <<YAML
apiVersion: alustan.io/v1alpha1
kind: Terraform
metadata: {name: workload, namespace: default}
spec:
  variables: {greeting: "$1"}
  scripts:
    apply:
      inline: |
        #!/bin/bash
        set -euo pipefail
        echo "saying \$greeting"
        "\$TERRANE_TOOL" apply -input=false -no-color -auto-approve
    destroy:
      inline: |
        "\$TERRANE_TOOL" destroy -input=false -no-color -auto-approve
  gitRepo:
    url: https://quickstart-git.default.svc/code.git/hello
    branch: main
  containerRegistry: {imageName: docker.io/example/workload (a remark)}
YAML
}

check_terraform() {
    local runs
    kubectl --namespace default get secret quickstart-git --output 'jsonpath={.data.ca\.crt}' | base64 --decode >"$work/git-ca.crt"
    kubectl --namespace default create secret generic workload-git --type terrane.dev/repository \
        --from-literal url=https://quickstart-git.default.svc --from-file "ca.crt=$work/git-ca.crt" >/dev/null
    terraform_manifest "Hello from a workload" | kubectl apply --server-side --filename - >/dev/null
    eventually 120 "a Terraform is deployed" terraform_gives greeting "Hello from a workload"
    kubectl --namespace default wait terraform/workload --for condition=Ready --timeout 30s >/dev/null || fail "a Terraform that is deployed is not Ready"
    say "kubectl wait --for condition=Ready works on a Terraform"
    equal "what is sensitive is named" "*** (sensitive; key word of Secret workload-outputs)" \
        "$(kubectl --namespace default get terraform/workload --output 'jsonpath={.status.output.word}')"
    surroundings | kubectl apply --filename - >/dev/null
    eventually 60 "it tells where Ingresses answer" terraform_tells ingressURLs.kube-public '["https://shop.example"]'
    eventually 60 "and where the login of Argo CD is" terraform_tells credentials.argocdPassword \
        "*** (key password of Secret argocd-initial-admin-secret of namespace kube-public)"
    surroundings | kubectl delete --filename - >/dev/null
    eventually 60 "until they are gone" terraform_tells ingressURLs ""
    runs=$(kubectl --namespace default get terraformruns --field-selector spec.layer.name=workload --output name | wc -l)
    terraform_manifest "Hello from a workload" | kubectl apply --server-side --filename - >/dev/null
    terraform_manifest "Hello again" | kubectl apply --server-side --filename - >/dev/null
    eventually 120 "another variable is deployed" terraform_gives greeting "Hello again"
    equal "by a plan and an apply, and nothing for the same manifest" "$((runs + 2))" \
        "$(kubectl --namespace default get terraformruns --field-selector spec.layer.name=workload --output name | wc -l)"
    # What is changed on the objects that belong to it is put right.
    kubectl --namespace default patch terraformrepository workload --type merge --patch '{"spec":{"repository":{"url":"https://elsewhere.example/code.git"}}}' >/dev/null
    eventually 60 "its repository is put right" terraform_reads https://quickstart-git.default.svc/code.git
    kubectl --namespace default delete terraform workload --timeout 120s >/dev/null || fail "the Terraform does not go"
    equal "its layer has gone before it" "" "$(kubectl --namespace default get terraformlayer/workload --ignore-not-found --output name)"
    eventually 60 "its repository goes with it" absent terraformrepository/workload
    kubectl --namespace default delete secret workload-git >/dev/null
}
