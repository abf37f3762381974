package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
)

const tokenHelp = `Usage: chronocast token --sub SUB [--stream NAME…] [--prefix PREFIX…] [flags]

Prints a token (JWT, HS256) that speaks for SUB. The key is that of the server:
CHRONOCAST_JWT_KEY (the first with HS256) or CHRONOCAST_SECRET. Applications
make their own tokens; this is for trying things out and for programs.
`

const tokenExamples = `  chronocast token --sub alice --stream chat/42
  chronocast token --sub worker --prefix jobs/ --can read,publish --expires 24h
`

// names is a flag that may be repeated.
type names []string

func (n *names) String() string { return "" }

// Set adds a name.
func (n *names) Set(text string) error {
	if protocol.CheckStream(text) != nil {
		return errors.New("it cannot be the name of a stream")
	}
	*n = append(*n, text)
	return nil
}

func runToken(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	f := newClientFlags("token", tokenHelp, tokenExamples, stderr)
	var keys security
	keys.keyFlags(f.FlagSet)
	var streams, prefixes names
	sub := f.String("sub", "", "whom it speaks for, `SUB`")
	f.Var(&streams, "stream", "a stream it is good for, `NAME`; may be repeated")
	f.Var(&prefixes, "prefix", "streams it is good for, those whose name begins with `PREFIX`; may be repeated")
	can := f.String("can", "read", "what it may do there: `RIGHTS`, read, publish or both separated by a comma")
	expires := f.Duration("expires", time.Hour, "how long it is good")
	issuer := f.String("issuer", "", "who issues it, its `iss`")
	audience := f.String("audience", "", "whom it is for, its `aud`")
	rest, code := f.parseArgs(args, stdout)
	if code >= 0 {
		return code
	}
	if len(rest) > 0 {
		return f.misused("unexpected argument %q; streams are named with --stream", clean(rest[0]))
	}
	if *sub == "" && len(streams)+len(prefixes) == 0 {
		return f.misused("say whom it speaks for with --sub, or for what it is good with --stream")
	}
	if *expires <= 0 {
		return f.misused("--expires must be greater than 0")
	}
	var right auth.Grant
	for _, word := range list(*can) {
		switch word {
		case "read":
			right.Read = true
		case "publish":
			right.Publish = true
		default:
			return f.misused("--can: it is read, publish or both")
		}
	}
	claims := auth.TokenClaims{Subject: *sub, Issuer: *issuer, Audience: *audience, Expires: time.Now().Add(*expires)}
	for _, name := range streams {
		right.Name, right.Prefix = name, ""
		claims.Grants = append(claims.Grants, right)
	}
	for _, prefix := range prefixes {
		right.Name, right.Prefix = "", prefix
		claims.Grants = append(claims.Grants, right)
	}
	c, err := keys.policy()
	if err != nil {
		return f.fail(ctx, err)
	}
	for _, key := range c.Tokens.Keys {
		secret, shared := key.Shared()
		if !shared {
			continue
		}
		token, err := auth.IssueToken(secret, key.Kid, claims)
		if err == nil {
			_, err = fmt.Fprintln(stdout, token)
		}
		return f.fail(ctx, err)
	}
	return f.fail(ctx, errors.New("there is no HS256 key to sign with: set CHRONOCAST_SECRET or CHRONOCAST_JWT_KEY"))
}
