package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Options say what to run. Zero values are the scenario's own defaults.
type Options struct {
	Scenario string
	URL      string // of the cable; empty starts servers of our own
	PID      int    // of a server on this machine whose CPU and memory are measured; 0: our own, or none

	Protocol string   // subprotocol; defaults to actioncable-v1-json
	Channel  string   // identifier, a JSON object in which {stream} stands for the stream's name
	Headers  []string // more lines for the handshake
	Origin   string
	Insecure bool          // believe any certificate
	Timeout  time.Duration // of a connection until it is confirmed, of a publish, of a round trip; 30 s

	Publish    string // one of the Publish constants; defaults to PublishAPI
	PublishURL string // where; defaults to the host of URL
	Key        string // publish key
	Publishers int    // connections that publish; 4, where every user publishes 64
	Pipeline   int    // requests under way on each; 16, or 1 for PublishAnyCable
	Batch      int    // messages in one body of PublishBroadcast; 256
	Perform    string // data of PublishPerform, JSON in which {payload} stands for the payload

	Clients []int
	Rates   []float64     // messages per second
	For     time.Duration // of each step
	Rounds  int
	Shape   string // text, json, turbo
	Size    int    // bytes of a payload
	Streams int
	Ramp    float64 // connections per second; 0: the scenario's own
	Readers int     // of each answer of tokens

	Goroutines bool // use the portable engine
	Loops      int  // of connections; 1

	Serve      []string // command that starts a server of ours
	ServeFlags []string // more flags for it
	Servers    int      // how many; 0 as many as the open-file limit asks for
	Child      []string // command that becomes a worker
	FloorPort  int

	Live func(Progress) `json:"-"` // told once a second; may be nil
}

// Progress is how far a run has come.
type Progress struct {
	Step, Steps int
	Label       string
	Done        float64 // share of the step, 0 to 1
	Point       Point
}

const (
	defaultAnswers = 20
	defaultChannel = `{"channel":"$pubsub","stream_name":"{stream}"}`
	defaultPerform = `{"action":"speak","message":{payload}}`
)

// withDefaults fills what the scenario does not set itself.
func (o Options) withDefaults() Options {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&o.Protocol, "actioncable-v1-json")
	set(&o.Channel, defaultChannel)
	set(&o.Publish, PublishAPI)
	set(&o.Perform, defaultPerform)
	set(&o.Shape, "text")
	number := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	switch o.Scenario {
	case "constant", "herd": // every user is a publisher, and they do not wait for one another
		number(&o.Publishers, 64)
	case "tokens": // an answer waits for its own commits only
		number(&o.Publishers, min(or(o.Clients, defaultAnswers)[0], 64))
	}
	number(&o.Publishers, 4)
	if o.Publish == PublishAnyCable { // some servers, Puma among them, stall on a request that came with another
		number(&o.Pipeline, 1)
	}
	number(&o.Pipeline, 16)
	number(&o.Batch, 256)
	number(&o.Loops, 1)
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	return o
}

// Validate names the option that cannot be used, in words of the command line.
func (o Options) Validate() error {
	if _, ok := scenarios[o.Scenario]; !ok {
		return fmt.Errorf("there is no scenario %q", o.Scenario)
	}
	if o.URL != "" {
		if _, err := parseTarget(o.URL); err != nil {
			return err
		}
	}
	switch o.Publish {
	case "", PublishAPI, PublishBroadcast, PublishAnyCable, PublishPerform:
	default:
		return fmt.Errorf("--publish must be %s, %s, %s or %s", PublishAPI, PublishBroadcast, PublishAnyCable, PublishPerform)
	}
	if o.PublishURL != "" && !strings.HasPrefix(o.PublishURL, "http://") && !strings.HasPrefix(o.PublishURL, "https://") {
		return errors.New("--publish-url must begin with http:// or https://")
	}
	if o.Channel != "" && (!json.Valid([]byte(o.Channel)) || !strings.HasPrefix(strings.TrimSpace(o.Channel), "{")) {
		return errors.New("--channel must be a JSON object; {stream} in it stands for the stream's name")
	}
	if o.Perform != "" && (!strings.Contains(o.Perform, "{payload}") || !json.Valid([]byte(strings.ReplaceAll(o.Perform, "{payload}", "0")))) {
		return errors.New("--perform must be JSON with {payload} in the place of a value")
	}
	for _, h := range o.Headers {
		name, _, ok := strings.Cut(h, ":")
		if !ok || strings.TrimSpace(name) == "" || strings.ContainsAny(h, "\r\n") {
			return fmt.Errorf("--header must look like 'Name: value', not %q", h)
		}
	}
	for _, text := range []string{o.Protocol, o.Origin, o.Key} {
		if strings.ContainsAny(text, "\r\n") {
			return errors.New("--protocol, --origin and the key must be one line each")
		}
	}
	for _, n := range o.Clients {
		if n < 1 || n > 1_000_000 {
			return fmt.Errorf("--clients %d must be from 1 to 1000000", n)
		}
	}
	for _, r := range o.Rates {
		if r <= 0 || r > 1_000_000 {
			return fmt.Errorf("--rate %g must be above 0 and at most 1000000", r)
		}
	}
	if o.Size != 0 || o.Shape != "" {
		shape, size := o.Shape, o.Size
		if shape == "" {
			shape = "text"
		}
		if size == 0 {
			size = 1024
		}
		if size > 16<<20 {
			return errors.New("--size must be at most 16 MiB")
		}
		if _, err := newShape(shape, size); err != nil {
			return errors.New(strings.TrimPrefix(err.Error(), "load: "))
		}
	}
	for _, n := range []struct {
		flag      string
		value, hi int
	}{
		{"publishers", o.Publishers, 1024}, {"pipeline", o.Pipeline, 1024}, {"batch", o.Batch, 10_000}, {"rounds", o.Rounds, 100_000},
		{"streams", o.Streams, 100_000}, {"readers", o.Readers, 1000}, {"loops", o.Loops, 64}, {"servers", o.Servers, 64},
	} {
		if n.value < 0 || n.value > n.hi {
			return fmt.Errorf("--%s %d must be from 1 to %d", n.flag, n.value, n.hi)
		}
	}
	for _, d := range []struct {
		flag      string
		value, hi time.Duration
	}{{"for", o.For, 24 * time.Hour}, {"timeout", o.Timeout, time.Hour}} {
		if d.value < 0 || d.value > d.hi {
			return fmt.Errorf("--%s %v must be above 0 and at most %v", d.flag, d.value, d.hi)
		}
	}
	if o.Ramp < 0 {
		return errors.New("--ramp must not be negative")
	}
	return nil
}
