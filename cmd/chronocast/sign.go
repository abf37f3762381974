package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/chronocast/chronocast/internal/auth"
)

const signHelp = `Usage: chronocast sign STREAM [--for SUB] [--expires 1h] [--turbo]

Prints a signed stream name: whoever has it may read STREAM, for ever unless
--expires says otherwise, and with --for only together with a token of that user.
The keys are those of the server: CHRONOCAST_SIGN_KEY or CHRONOCAST_SECRET, and
for --turbo CHRONOCAST_TURBO_KEY or CHRONOCAST_SECRET_KEY_BASE.
`

const signExamples = `  CHRONOCAST_SECRET=… chronocast sign chat/42
  chronocast sign chat/42 --for alice --expires 1h --secret-file secret
`

// keyFlags adds the flags that name keys to those of a command that signs.
func (s *security) keyFlags(f *flag.FlagSet) {
	f.StringVar(&s.SecretFile, "secret-file", "", "a file with the application's secret at `PATH`")
	for name, value := range map[string]*secretFlag{
		"secret": &s.Secret, "sign-key": &s.SignKey, "turbo-key": &s.TurboKey, "secret-key-base": &s.SecretKeyBase, "jwt-key": &s.JWTKey,
	} {
		if text, ok := environment(variable(name)); ok {
			*value = secretFlag{text: text, environ: true}
		}
	}
	if path, ok := environment(variable("secret-file")); ok {
		s.SecretFile = path
	}
}

func runSign(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	f := newClientFlags("sign", signHelp, signExamples, stderr)
	var keys security
	keys.keyFlags(f.FlagSet)
	subject := f.String("for", "", "the user, `SUB`, whom it is for alone")
	expires := f.Duration("expires", 0, "how long it is good; 0 is for ever")
	turbo := f.Bool("turbo", false, "sign for Turbo::StreamsChannel")
	rest, code := f.parse(args, stdout, 1, 1)
	if code >= 0 {
		return code
	}
	if *expires < 0 {
		return f.misused("--expires must not be negative")
	}
	c, err := keys.policy()
	if err != nil {
		return f.fail(ctx, err)
	}
	channel, with := auth.ChannelPubSub, c.SignKeys
	if *turbo {
		channel, with = auth.ChannelTurbo, c.TurboKeys
	}
	if len(with) == 0 {
		return f.fail(ctx, errors.New("there is no key to sign with: set CHRONOCAST_SECRET, or what chronocast sign --help names"))
	}
	s := auth.Signed{Stream: rest[0], Subject: *subject}
	if *expires > 0 {
		s.Expires = time.Now().Add(*expires)
	}
	signed, err := auth.Sign(with[0], channel, s)
	if err == nil {
		_, err = fmt.Fprintln(stdout, signed)
	}
	return f.fail(ctx, err)
}
