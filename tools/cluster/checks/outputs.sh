# shellcheck shell=bash
# Outputs in Secrets and ConfigMaps: written, put right, left alone where they are somebody else's, cleared. Read by `check`.

# secret_holds KEY VALUE: of the Secret `hello-outputs`; config_map_holds is the same of the ConfigMap `hello-greeting`
secret_holds() {
    [[ $(kubectl --namespace default get secret hello-outputs --output "jsonpath={.data.$1}" | base64 --decode) == "$2" ]]
}
config_map_holds() { [[ $(kubectl --namespace default get configmap hello-greeting --output "jsonpath={.data.$1}") == "$2" ]]; }
# absent KIND/NAME
absent() { [[ -z $(kubectl --namespace default get "$1" --ignore-not-found --output name) ]]; }

check_outputs() {
    local patch
    eventually 120 "the layer whose outputs are written is applied" ready hello-outputs
    secret_holds word not-a-real-password || fail "the Secret does not hold the sensitive output"
    config_map_holds GREETING "Hello from Terrane" || fail "the ConfigMap does not hold the output"
    # Each right on both kinds is used: what is edited is put right, what is deleted made anew.
    kubectl --namespace default patch secret hello-outputs --type merge --patch '{"stringData":{"word":"edited"}}' >/dev/null
    kubectl --namespace default patch configmap hello-greeting --type merge --patch '{"data":{"GREETING":"edited","mine":"kept"}}' >/dev/null
    eventually 60 "an edited Secret is put right" secret_holds word not-a-real-password
    eventually 60 "so is an edited ConfigMap" config_map_holds GREETING "Hello from Terrane"
    config_map_holds mine kept || fail "a key of somebody else was removed"
    kubectl --namespace default patch configmap hello-greeting --type merge --patch '{"data":{"mine":null}}' >/dev/null
    kubectl --namespace default delete secret hello-outputs >/dev/null
    eventually 60 "a Secret that was deleted is made anew" secret_holds word not-a-real-password
    kubectl --namespace default create configmap taken --from-literal mine=kept >/dev/null
    patch='{"spec":{"writeOutputsTo":[{"configMap":"taken"}]}}'
    kubectl --namespace default patch terraformlayer hello-outputs --type merge --patch "$patch" >/dev/null
    eventually 60 "what the layer no longer names is gone" absent secret/hello-outputs
    eventually 60 "of both kinds" absent configmap/hello-greeting
    eventually 60 "what is somebody else's is left alone, and that is told" holds hello-outputs OutputsWritten False
    equal "it is as it was" kept "$(kubectl --namespace default get configmap taken --output 'jsonpath={.data.mine}')"
    kubectl --namespace default delete configmap taken >/dev/null
    kubectl apply --filename examples/quickstart/6-outputs.yaml >/dev/null
    eventually 60 "asked for again, it is written again" holds hello-outputs OutputsWritten True
}
