#!/usr/bin/env bash
# Both manifests, one after the other: deployed, shown, and destroyed by their deletion.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

for manifest in inline.yaml config-map.yaml; do
    kubectl apply --filename "$manifest"
    kubectl wait terraform/example-terraformconfig --for=jsonpath='{.status.state}'=Completed --timeout=5m
    kubectl get terraforms
    kubectl get terraform example-terraformconfig --output jsonpath='{.status.output}{"\n"}'
    kubectl delete --filename "$manifest" --timeout=5m
done
