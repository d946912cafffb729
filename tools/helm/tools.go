//go:build tools

// Package tools names the command that is built from this module, so that
// `go mod tidy` keeps everything it needs in go.mod and go.sum.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
