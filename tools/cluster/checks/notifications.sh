# shellcheck shell=bash
# A notification: declared before something is applied, and looked at after that. Its receiver is the Git server of the example, which has a
# certificate that only its own authority vouches for, and wants nobody's news: what it answers is on record. Read by `check`.

notification_reason() {
    kubectl --namespace default get terraformnotification told --output 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}'
}
# notification_says REASON
notification_says() { [[ $(notification_reason) == "$1" ]]; }
notification_answered() {
    [[ $(kubectl --namespace default get terraformnotification told --output 'jsonpath={.status.lastFailure.message}') == "it answered 4"* ]]
}

declare_notification() {
    local authority
    kubectl apply --filename - >/dev/null <<'YAML'
apiVersion: terrane.dev/v1alpha1
kind: TerraformNotification
metadata: {name: told, namespace: default}
spec:
  to: {webhook: {secretName: told}}
  events: [Applied]
YAML
    eventually 60 "a notification without its Secret says so" notification_says CannotBeTold
    authority=$(kubectl --namespace default get secret quickstart-git --output 'jsonpath={.data.ca\.crt}' | base64 --decode)
    kubectl --namespace default create secret generic told --from-literal url=https://quickstart-git.default.svc/news-0c1d2e \
        --from-literal key=not-a-real-key --from-literal "ca.crt=$authority" >/dev/null
    kubectl --namespace default wait terraformnotification/told --for condition=Ready --timeout 60s >/dev/null ||
        fail "it is not Ready once its Secret is there"
    equal "and is ready once it is there, for which kubectl wait waits" Telling "$(notification_reason)"
}

check_notification() {
    eventually 60 "what was applied is told, and the answer is on record" notification_answered
    ! kubectl --namespace default get terraformnotification,events --output yaml | grep --quiet 'news-0c1d2e\|not-a-real-key' ||
        fail "the address or the key of a receiver is shown"
    kubectl --namespace default delete terraformnotification/told secret/told >/dev/null
}
