package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/chronocast/chronocast/internal/auth"
)

const keysHelp = `Usage: chronocast keys new
       chronocast keys derive [--secret-file PATH]

new prints a new secret. derive prints the publish key that belongs to the
secret in CHRONOCAST_SECRET or --secret-file, for whoever publishes but must not
have the secret itself; it is the one AnyCable derives.
`

const keysExamples = `  (umask 077; chronocast keys new >secret)
  chronocast serve --addr :8080 --secret-file secret
  chronocast keys derive --secret-file secret
`

func runKeys(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	f := newClientFlags("keys", keysHelp, keysExamples, stderr)
	var keys security
	keys.keyFlags(f.FlagSet)
	rest, code := f.parseArgs(args, stdout)
	if code >= 0 {
		return code
	}
	if len(rest) != 1 || rest[0] != "new" && rest[0] != "derive" {
		return f.misused("say new or derive")
	}
	made := auth.GenerateSecret()
	if rest[0] == "derive" {
		secrets, err := keys.secrets()
		if err == nil && len(secrets) == 0 {
			err = errors.New("there is no secret: set CHRONOCAST_SECRET or --secret-file")
		}
		if err != nil {
			return f.fail(ctx, err)
		}
		made = auth.DerivePublishKey(secrets[0])
	}
	_, err := fmt.Fprintln(stdout, made.Reveal())
	return f.fail(ctx, err)
}
