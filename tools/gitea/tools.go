//go:build tools

// Package tools names Gitea's command, so that `go mod tidy` keeps what it needs.
// `go install` refuses it: a replace in its go.mod counts only for a module that
// builds it as its own.
package tools

import _ "code.gitea.io/gitea"
