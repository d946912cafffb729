//go:build tools

// Package tools names etcd's server command, built where Debian's package
// cannot be had.
package tools

import _ "go.etcd.io/etcd/server/v3"
