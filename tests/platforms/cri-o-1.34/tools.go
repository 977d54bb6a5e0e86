// Package tools names the program of CRI-O that tests/cluster/build makes, so that go.mod and go.sum
// pin all that goes into it.
package tools

import _ "github.com/cri-o/cri-o/cmd/crio"
