// Package tools names the program of runc that tests/cluster/build makes, so that go.mod and go.sum
// pin all that goes into it.
package tools

import _ "github.com/opencontainers/runc"
