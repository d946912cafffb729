//go:build tools

// Package tools names Terragrunt's command, so that `go mod tidy` keeps what it
// needs. `go install` refuses it: a replace in its go.mod counts only for a
// module that builds it as its own. The database of checksums has no entry for
// go-git's commits: `GONOSUMDB='github.com/go-git/*' go mod tidy`.
package tools

import _ "github.com/gruntwork-io/terragrunt"
