// schemas writes what kubeconform checks manifests against, without a network: JSON schemas made
// from Kubernetes' own OpenAPI and the resource definitions of cert-manager and of Prometheus'
// operator, as they lie in the modules. Unknown fields are errors, as the API server's strict decoding has it.
//
// usage: go mod download -json MODULE@VERSION ... | schemas PINS OUT
// PINS: lines of MODULE VERSION SUM, the modules that may be read.
package main

import (
	"archive/zip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

type object = map[string]any

type module struct{ Path, Version, Zip, Sum, Error string }

const definitions = "#/definitions/"

// Where cert-manager and Prometheus' operator have them.
var crds = regexp.MustCompile(`^(deploy/crds|example/prometheus-operator-crd)/.*\.yaml$`)

// Values that are not what their type says.
var scalars = map[string]object{
	"io.k8s.apimachinery.pkg.api.resource.Quantity":   {"type": []string{"string", "number"}},
	"io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": []string{"string", "integer"}},
}

func main() {
	log.SetFlags(0)
	pins, err := os.ReadFile(os.Args[1])
	check(err)
	decoder := json.NewDecoder(os.Stdin)
	for {
		var m module
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		if m.Error != "" {
			log.Fatalf("%s: %s", m.Path, m.Error)
		}
		if !strings.Contains(string(pins), fmt.Sprintln(m.Path, m.Version, m.Sum)) {
			log.Fatalf("%s %s has the sum %s, %s says otherwise", m.Path, m.Version, m.Sum, os.Args[1])
		}
		write(m, os.Args[2])
	}
}

func write(m module, out string) {
	archive, err := zip.OpenReader(m.Zip)
	check(err)
	defer archive.Close()
	for _, file := range archive.File {
		name := strings.TrimPrefix(file.Name, m.Path+"@"+m.Version+"/")
		switch {
		case name == "api/openapi-spec/swagger.json":
			fromOpenAPI(read(file), filepath.Join(out, m.Version))
		case crds.MatchString(name):
			fromCRD(read(file), out)
		}
	}
}

// fromOpenAPI writes one file for each kind, with all that it refers to.
func fromOpenAPI(api object, out string) {
	all := api["definitions"].(object)
	for name, definition := range all {
		sealed := seal(definition).(object)
		all[name] = sealed
		if scalar, ok := scalars[name]; ok {
			all[name] = scalar
		}
	}
	for name, definition := range all {
		kinds, _ := definition.(object)["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 { // DeleteOptions and the like belong to every group.
			continue
		}
		kind := kinds[0].(object)
		needed := object{}
		collect(name, all, needed)
		group, _, _ := strings.Cut(kind["group"].(string), ".")
		parts := []string{kind["kind"].(string), group, kind["version"].(string)}
		if group == "" {
			parts = []string{parts[0], parts[2]}
		}
		save(filepath.Join(out, strings.ToLower(strings.Join(parts, "-"))+".json"),
			object{"$ref": definitions + name, "definitions": needed})
	}
}

func collect(name string, all, needed object) {
	if _, there := needed[name]; there {
		return
	}
	needed[name] = all[name]
	for _, other := range references(all[name]) {
		collect(other, all, needed)
	}
}

func references(value any) (names []string) {
	switch v := value.(type) {
	case object:
		if to, ok := v["$ref"].(string); ok {
			names = append(names, strings.TrimPrefix(to, definitions))
		}
		for _, inner := range v {
			names = append(names, references(inner)...)
		}
	case []any:
		for _, inner := range v {
			names = append(names, references(inner)...)
		}
	}
	return names
}

func fromCRD(crd object, out string) {
	spec := crd["spec"].(object)
	kind := strings.ToLower(spec["names"].(object)["kind"].(string))
	for _, v := range spec["versions"].([]any) {
		version := v.(object)
		schema := seal(version["schema"].(object)["openAPIV3Schema"]).(object)
		schema["properties"].(object)["metadata"] = object{"type": "object"}
		save(filepath.Join(out, spec["group"].(string),
			fmt.Sprintf("%s_%s.json", kind, version["name"])), schema)
	}
}

// seal makes fields that are not named errors, and leaves descriptions out.
func seal(value any) any {
	switch v := value.(type) {
	case object:
		if text, ok := v["description"].(string); ok && text != "" {
			delete(v, "description")
		}
		if v["x-kubernetes-int-or-string"] == true {
			return object{"type": []string{"string", "integer"}}
		}
		for key, inner := range v {
			v[key] = seal(inner)
		}
		_, named := v["properties"].(object)
		if _, said := v["additionalProperties"]; named && !said {
			v["additionalProperties"] = false
		}
	case []any:
		for i, inner := range v {
			v[i] = seal(inner)
		}
	}
	return value
}

func read(file *zip.File) (content object) {
	stream, err := file.Open()
	check(err)
	defer stream.Close()
	text, err := io.ReadAll(stream)
	check(err)
	check(yaml.Unmarshal(text, &content)) // JSON as well.
	return content
}

func save(path string, schema object) {
	check(os.MkdirAll(filepath.Dir(path), 0o755))
	text, err := json.Marshal(schema)
	check(err)
	check(os.WriteFile(path, text, 0o644))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
