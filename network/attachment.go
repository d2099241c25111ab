package network

import (
	"net/netip"
)

// Attachment is what CNI gave the pod: enough to put the sandbox behind the
// link now, and to compare at a later restore. Its JSON form is stable.
type Attachment struct {
	Interface    string         `json:"interface"` // in P
	MAC          string         `json:"mac"`
	MTU          int            `json:"mtu"`
	Addresses    []netip.Prefix `json:"addresses"` // global ones, both families
	Routes       []Route        `json:"routes,omitempty"`
	PortMappings []PortMapping  `json:"portMappings,omitempty"` // best effort
	Others       []string       `json:"others,omitempty"`       // interfaces with addresses of their own, which the link can't carry

	// Inside is what the sandbox has for an address of the pod's (the key), where that is another; see Follow.
	Inside map[netip.Addr]netip.Addr `json:"inside,omitempty"`

	published *published // of PortMappings, as far as they are to be kept up; nil when they aren't
}

// Route is a route of P's main table through the attachment's interface.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	Gateway     netip.Addr   `json:"gateway,omitzero"` // invalid: on the link
	Source      netip.Addr   `json:"source,omitzero"`
	Metric      int          `json:"metric,omitempty"`
	MTU         int          `json:"mtu,omitempty"`        // 0: the interface's
	OnLink      bool         `json:"onLink,omitempty"`     // gateway outside the addresses' networks
	Advertised  bool         `json:"advertised,omitempty"` // by a router, which also takes it back
}

// PortMapping is a port of the node that CNI forwards to the pod.
type PortMapping struct {
	HostIP        string `json:"hostIP,omitempty"`
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol,omitempty"`
}

func (a *Attachment) has(addr netip.Addr) bool {
	for _, p := range a.Addresses {
		if p.Addr() == addr {
			return true
		}
	}
	return false
}
