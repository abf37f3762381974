package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// buildVersion is set by the linker for a release, with
// -ldflags "-X main.buildVersion=v1.2.3"; otherwise the build info tells.
var buildVersion = ""

// buildInfo is what is known about this binary.
type buildInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// thisBuild describes the running binary.
func thisBuild() buildInfo {
	info, _ := debug.ReadBuildInfo()
	return describeBuild(buildVersion, info)
}

func describeBuild(version string, info *debug.BuildInfo) buildInfo {
	b := buildInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.time":
				b.Time = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
	}
	return b
}

func (b buildInfo) String() string {
	commit := "unknown commit"
	if b.Commit != "" {
		commit = b.Commit[:min(12, len(b.Commit))]
		if b.Modified {
			commit += ", modified"
		}
		if b.Time != "" {
			commit += ", " + b.Time
		}
	}
	return "chronocast " + b.Version + " (" + commit + ") " + b.Go + " " + b.Platform
}

const versionHelp = `Usage: chronocast version [--json]

Prints the version of this binary, the commit it was built from, if that is known,
and the Go version and platform it was built with.
`

func runVersion(_ context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("version", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	asJSON := flags.Bool("json", false, "print one JSON object")
	flags.Usage = func() {}
	switch err := flags.Parse(args); {
	case err == flag.ErrHelp:
		fmt.Fprint(stdout, versionHelp)
		return exitOK
	case err != nil || flags.NArg() > 0:
		fmt.Fprintf(stderr, "chronocast version: takes no arguments but --json\n")
		return exitUsage
	}
	b := thisBuild()
	if *asJSON {
		text, _ := json.Marshal(b) // strings and a bool always encode
		fmt.Fprintf(stdout, "%s\n", text)
		return exitOK
	}
	fmt.Fprintln(stdout, b)
	return exitOK
}
