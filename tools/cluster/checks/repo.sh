# shellcheck shell=bash
# A Repo: one object with a URL, and Jobs that show what is done and start nothing. Read by `check`.

repo_ready() { kubectl --namespace default wait repo/by-url --for condition=Ready --timeout 1s; }
polled_every() { [[ $(kubectl --namespace default get terraformrepository/by-url --output 'jsonpath={.spec.pollInterval}') == "$1" ]]; }

check_repo() {
    local job
    kubectl apply --filename - >/dev/null <<'YAML'
apiVersion: terrane.dev/v1alpha1
kind: Repo
metadata: {name: by-url, namespace: default}
spec:
  url: https://quickstart-git.default.svc/code.git
  credentials: {secretName: quickstart-git}
  path: hello
YAML
    eventually 120 "a Repo is applied" repo_ready
    job=$(kubectl --namespace default get repo/by-url --output 'jsonpath={.status.run.job}')
    kubectl --namespace default wait "job/$job" --for condition=Complete --timeout 10s >/dev/null || fail "Job $job does not say so"
    equal "no pod was made for the Job" "" \
        "$(kubectl --namespace default get pods --selector "batch.kubernetes.io/job-name=$job" --output name)"
    kubectl --namespace default patch repo by-url --type merge --patch '{"spec":{"interval":"10s"}}' >/dev/null
    eventually 60 "what a Repo says goes to its repository" polled_every 10s
    kubectl --namespace default delete repo by-url >/dev/null
    eventually 60 "with the Repo goes its layer" absent terraformlayer/by-url
    eventually 60 "and its Job" absent "job/$job"
}
