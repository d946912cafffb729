//go:build tools

// Package tools names metacontroller's command, so that `go mod tidy` keeps what
// it needs. Its module calls itself by another name than its address, and the
// database of checksums has no entry for it:
// `GONOSUMDB=github.com/metacontroller/metacontroller go mod tidy`.
package tools

import _ "metacontroller"
