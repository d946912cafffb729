# shellcheck shell=bash
# The cases that the embedded API is held to, on the cluster that runs. The cases that speak of pods which nobody runs are left out there
# (crates/conformance/tests/real). Read by `check` and `conformance`.

# On a cluster that was started for it: the cases begin by installing the definitions, and leave a namespace each behind.
check_conformance() {
    check_dying
    check_cases
}

check_cases() {
    kubectl --namespace kube-system create serviceaccount conformance >/dev/null
    kubectl create clusterrolebinding conformance --clusterrole cluster-admin --serviceaccount kube-system:conformance >/dev/null
    (umask 077 && kubectl config view --raw --minify --output json |
        jq --arg token "$(kubectl --namespace kube-system create token conformance --duration 1h)" '.users[0].user = {token: $token}' >"$work/conformance")
    TERRANE_TOOLS=$(tools/setup path) TERRANE_TEST_KUBECONFIG=$work/conformance \
        cargo test --workspace --locked --test real -- every_case_holds --nocapture >&2
    kubectl delete clusterrolebinding conformance >/dev/null
    kubectl --namespace kube-system delete serviceaccount conformance >/dev/null
}
