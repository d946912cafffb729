#!/usr/bin/env bash
# The manifest is deployed from its image, shown, and destroyed by its deletion.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

kubectl apply --filename workload.yaml
kubectl wait terraform/staging-cluster --for=jsonpath='{.status.state}'=Completed --timeout=5m
kubectl get terraforms
kubectl get terraform staging-cluster --output jsonpath='{.status.output}{"\n"}{.status.postDeployOutput}{"\n"}'
kubectl delete --filename workload.yaml --timeout=5m
