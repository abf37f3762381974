package chronocast_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"sort"
	"strings"
	"testing"
)

const module = "github.com/chronocast/chronocast"

// layers lists, for every package of the module, which of our packages its
// shipped code may import. Each layer knows only what stands below it; a new
// package must be given its place here.
var layers = map[string][]string{
	"protocol":                 {},
	"sequencer":                {"protocol"},
	"history":                  {"protocol"},
	"migrations":               {},
	"client-js":                {},
	"internal/store/sqlite":    {"protocol", "sequencer", "history", "migrations"},
	"internal/store/postgres":  {"protocol", "sequencer", "history", "migrations"},
	"internal/store/storetest": {"protocol", "sequencer", "history"},
	"internal/bus/pgnotify":    {},
	"internal/pgtest":          {},
	"internal/hub":             {"protocol", "history"},
	"internal/hub/hubtest":     {"protocol", "history", "internal/hub"},
	"internal/auth":            {"protocol"},
	"internal/session":         {"protocol", "history", "internal/hub", "internal/auth"},
	"internal/socket":          {},
	"internal/demo":            {"protocol", "sequencer"},
	"internal/load":            {},
	"internal/server": {"protocol", "sequencer", "history", "internal/hub", "internal/auth",
		"internal/session", "internal/socket"},
	"e2e": {},
}

// everything may be imported by the command alone.
const top = "cmd/chronocast"

type goPackage struct {
	ImportPath string
	Imports    []string
}

func TestLayers_EachPackageImportsOnlyWhatStandsBelowIt(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := map[string]bool{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list printed something else than JSON: %v", err)
		}
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		seen[name] = true
		if name == "" || name == top {
			continue
		}
		allowed, known := layers[name]
		if !known {
			t.Errorf("package %s has no layer: give it one in layers_test.go and docs/ARCHITECTURE.md", name)
			continue
		}
		for _, imported := range p.Imports {
			below, ours := strings.CutPrefix(imported, module+"/")
			if ours && !contains(allowed, below) {
				t.Errorf("%s imports %s; it may import only %s", name, below, strings.Join(allowed, ", "))
			}
		}
	}
	var gone []string
	for name := range layers {
		if !seen[name] {
			gone = append(gone, name)
		}
	}
	sort.Strings(gone)
	if len(gone) > 0 {
		t.Errorf("layers_test.go lists packages that do not exist: %s", strings.Join(gone, ", "))
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
