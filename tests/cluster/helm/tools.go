// Package tools names Helm's program, so that go.mod and go.sum pin all that goes into it.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
