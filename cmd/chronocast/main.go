// Command chronocast is the server and its command line client.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// command is one word of the command line. run returns the exit code; see
// [exitCodesHelp].
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int
}

// commands returns every command in the order help lists them.
func commands() []command {
	return []command{
		{"serve", "run the server", runServe},
		{"publish", "broadcast to a stream", runPublish},
		{"tail", "follow a stream", runTail},
		{"history", "print what a stream has kept", runHistory},
		{"sign", "sign the name of a stream", runSign},
		{"token", "make a token for a client", runToken},
		{"keys", "make a secret, or derive the publish key from it", runKeys},
		{"bench", "put load on an Action Cable server and measure it", runBench},
		{"migrate", "bring the schema of a PostgreSQL database up to date", runMigrate},
		{"version", "print the version", runVersion},
	}
}

func main() {
	signal.Ignore(syscall.SIGPIPE) // a write says that nobody reads, and the command ends as it should
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run finds the command args begin with and runs it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		if len(args) > 1 {
			args = []string{args[1], "--help"}
			break
		}
		usage(stdout)
		return exitOK
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], stdin, stdout, stderr)
		}
	}
	known := []string{"help"}
	for _, c := range commands() {
		known = append(known, c.name)
	}
	fmt.Fprintf(stderr, "chronocast: %q is not a command", clean(args[0]))
	if near := nearest(args[0], known); near != "" {
		fmt.Fprintf(stderr, "; did you mean %s?", near)
	}
	fmt.Fprint(stderr, "\nRun 'chronocast help' for what there is.\n")
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Chronocast delivers broadcasts in order, once, and recoverably.\n\nUsage: chronocast COMMAND [flags]\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-9s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, "  help      print this, or the flags of one command: help COMMAND\n"+exitCodesHelp)
}
