package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/chronocast/chronocast/internal/store/postgres"
)

const migrateHelp = `Usage: chronocast migrate [flags]

Brings the schema of a PostgreSQL database up to date and prints its number. It
may be run at any time and by several at once: what is there already is left
alone. serve does the same when it starts; run this first when serve's role must
not make tables. A SQLite file is brought up to date by serve.
`

func runMigrate(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	c := defaults()
	all := c.flags()
	f := flag.NewFlagSet("migrate", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	for _, name := range []string{"database", "database-wait", "log-level"} {
		fl := all.Lookup(name)
		f.Var(fl.Value, name, fl.Usage)
		if value, ok := environment(variable(name)); ok && f.Set(name, value) != nil {
			fmt.Fprintf(stderr, "chronocast migrate: %s is not valid\n", variable(name))
			return exitUsage
		}
	}
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "%s\nFlags:\n", migrateHelp)
		f.VisitAll(func(fl *flag.Flag) { printFlag(stdout, fl) })
		fmt.Fprint(stdout, "\nExamples:\n  CHRONOCAST_DATABASE=postgres://owner@db/app chronocast migrate\n")
		return exitOK
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	case err == nil && !c.isPostgres():
		err = errors.New("--database must be postgres://…; a SQLite file is brought up to date by serve")
	case err == nil:
		err = c.Validate()
	}
	if err != nil {
		fmt.Fprintf(stderr, "chronocast migrate: %v\n", err)
		return exitUsage
	}
	log, err := newLogger(c, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "chronocast migrate: %v\n", err)
		return exitUsage
	}
	var number int
	began := time.Now()
	err = c.awaitDatabase(ctx, log, func(ctx context.Context) (err error) {
		number, err = postgres.Migrate(ctx, c.Database, log)
		return err
	})
	if err != nil {
		fmt.Fprintf(stderr, "chronocast migrate: %v\n", err)
		return exitFailed
	}
	fmt.Fprintf(stdout, "schema %d of %s is in place (%v)\n", number, postgres.Redact(c.Database), time.Since(began).Round(time.Millisecond))
	return exitOK
}
