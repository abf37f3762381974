package protocol

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// provers are the directories whose tests PROTOCOL.md may name, by package.
var provers = map[string]string{
	"protocol": ".",
	"hub":      "../internal/hub",
	"hubtest":  "../internal/hub/hubtest",
	"session":  "../internal/session",
	"server":   "../internal/server",
	"sqlite":   "../internal/store/sqlite",
	"e2e":      "../e2e",
	"auth":     "../internal/auth",
	"pgnotify": "../internal/bus/pgnotify",
}

// partExists looks where the parts of a test are that a rule names behind a slash: a
// script, or a line of the suite that all stores pass.
func partExists(t *testing.T, test, part string) bool {
	t.Helper()
	switch test {
	case "session.TestConversations":
		_, err := os.Stat(filepath.Join(provers["session"], "testdata", part+".txt"))
		return err == nil
	case "sqlite.TestSuite":
		suite, err := os.ReadFile("../internal/store/storetest/storetest.go")
		return err == nil && strings.Contains(string(suite), `{"`+part+`", `)
	}
	return false
}

// Every rule of PROTOCOL.md is numbered without a hole and names a test, and
// the tests it names exist.
func TestDocument_EveryRuleNamesATestThatExists(t *testing.T) {
	text, err := os.ReadFile("PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for name, dir := range provers {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no tests of %s: %v", name, err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllSubmatch(source, -1) {
				exists[name+"."+string(m[1])] = true
			}
		}
	}
	rule := regexp.MustCompile(`^\| ([A-Z])(\d+) \| (.*) \| ([^|]*) \|$`)
	test := regexp.MustCompile("`((\\w+)\\.(?:Test|Fuzz)\\w+(?:/\\w+)?)`")
	next := map[string]int{}
	for i, line := range strings.Split(string(text), "\n") {
		m := rule.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		next[m[1]]++
		if m[2] != strconv.Itoa(next[m[1]]) {
			t.Errorf("line %d: rule %s%s comes after %s%d", i+1, m[1], m[2], m[1], next[m[1]]-1)
		}
		named := test.FindAllStringSubmatch(m[4], -1)
		if len(named) == 0 {
			t.Errorf("line %d: rule %s%s names no test", i+1, m[1], m[2])
		}
		for _, n := range named {
			name, part, inside := strings.Cut(n[1], "/")
			if !exists[name] || inside && !partExists(t, name, part) {
				t.Errorf("line %d: there is no %s", i+1, n[1])
			}
		}
	}
	if len(next) != 7 {
		t.Errorf("%d groups of rules", len(next))
	}
}
