//go:build tools

// Package tools names versitygw's command, so that `go mod tidy` keeps what it
// needs.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
