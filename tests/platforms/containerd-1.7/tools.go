// Package tools names the programs of containerd 1.7 that tests/cluster/build makes, so that go.mod
// and go.sum pin all that goes into them.
package tools

import (
	_ "github.com/containerd/containerd/cmd/containerd"
	_ "github.com/containerd/containerd/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/cmd/ctr"
)
