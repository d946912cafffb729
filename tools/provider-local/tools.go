//go:build tools

// Package tools names the provider `local`, whose resources are plain files:
// tests make real drift by changing one. The pinned commit is release 2.9.0;
// its tags say 2.x without a /v2 path, so Go knows it only by commit.
package tools

import _ "github.com/terraform-providers/terraform-provider-local"
