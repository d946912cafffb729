// Command coredns is CoreDNS with only the plugins that the test cluster's
// Corefile (tools/cluster/dns.yaml) names: the others, clients of cloud
// providers among them, would be most of the build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// Plugins handle a query in this order, whatever the order in the Corefile.
	dnsserver.Directives = []string{"health", "ready", "errors", "kubernetes"}
	coremain.Run()
}
