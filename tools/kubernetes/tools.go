//go:build tools

// Package tools names the commands that are built from this module, so that
// `go mod tidy` keeps everything they need in go.mod and go.sum.
//
// The kubelet, the scheduler and kube-proxy are named because a whole node is
// made of them; `tools/setup` builds only what a suite asks for.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
