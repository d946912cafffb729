//go:build tools

// Package tools names kaniko's executor, so that `go mod tidy` keeps what it needs.
package tools

import _ "github.com/GoogleContainerTools/kaniko/cmd/executor"
